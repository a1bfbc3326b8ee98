"""Generates command lines from harmless and harmful parts: quoted, encoded, wrapped, composed, damaged."""

import random
from collections.abc import Callable

HARMLESS = """
ls
ls -la src
cat README.md
cat -n src/app.py
head -n 3 notes.txt
tail -2 big.log
wc -l notes.txt
sort data.csv
sort -u notes.txt
uniq notes.txt
cut -d, -f1 data.csv
tr a-z A-Z < notes.txt
grep -n x notes.txt
grep -rn TODO src
grep -c x README.md
rg -n x src
find . -name '*.py'
find src -type f
find . -name '*.py' -exec grep -n x {} +
sed -n 1,3p notes.txt
sed 's/x/y/' notes.txt
awk '{print $1}' notes.txt
awk -F, '{print $2}' data.csv
jq . package.json
git status
git log --oneline -3
git diff
git show --stat HEAD
git branch -a
git ls-files
git blame notes.txt
git rev-parse HEAD
stat README.md
file README.md
du -sh src
basename src/app.py
dirname src/app.py
realpath src
md5sum README.md
sha256sum notes.txt
diff README.md notes.txt
cmp README.md notes.txt
comm -12 notes.txt notes.txt
paste notes.txt notes.txt
nl README.md
od -c README.md
xxd README.md
tac notes.txt
rev README.md
date +%F
uname -a
id
whoami
pwd
echo hello
echo "two words"
printf '%s\\n' a b
true
test -f README.md
[ -d src ]
seq 1 3
expr 1 + 2
env
printenv HOME
which ls
type ls
""".strip().splitlines()

HARMFUL = """
touch PWNED
rm notes.txt
rm -rf src
echo x > PWNED
echo x >> notes.txt
cat README.md > PWNED
cp README.md PWNED
mv README.md PWNED
mkdir PWNED
ln -s README.md PWNED
chmod 700 README.md
tee PWNED < README.md
sort -o PWNED notes.txt
sort -uoPWNED notes.txt
sed -i s/x/y/ notes.txt
sed -n 'w PWNED' notes.txt
sed -n 's/x/touch PWNED/e' notes.txt
awk 'BEGIN{system("touch PWNED")}'
awk '{print > "PWNED"}' notes.txt
awk 'BEGIN{print "x" | "tee PWNED"}'
find . -name notes.txt -delete
find . -name notes.txt -exec touch PWNED \\;
find . -fprint PWNED
git branch pwned
git tag pwned
git config a.b c
git diff --output=PWNED HEAD
git stash
git commit -qm x --allow-empty
uniq notes.txt PWNED
xxd README.md PWNED
shuf -o PWNED notes.txt
split notes.txt PWNED
./script.sh
sh script.sh
bash script.sh
. ./script.sh
source script.sh
python3 -c 'open("PWNED","w")'
perl -e 'open(F,">PWNED")'
cat ../out/secret.txt
head ../out/secret.txt
grep -r '' ../out
cat link_out/secret.txt
cat ~/.ssh/id_rsa
cd .. && cat out/secret.txt
ls | xargs touch
echo PWNED | xargs touch
xargs -a notes.txt touch
env touch PWNED
dd if=README.md of=PWNED
install README.md PWNED
truncate -s 0 notes.txt
PATH=. ls
export PATH=.
trap 'touch PWNED' EXIT
eval 'touch PWNED'
exec touch PWNED
rg --pre ./script.sh x
printf 'touch PWNED' | sh
""".strip().splitlines()

Change = Callable[[str, random.Random], str]


def _quoted_for_shell(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def quoted(command: str, chance: random.Random) -> str:
    """Returns the same words with other quoting."""
    words = command.split(" ")
    place = chance.randrange(len(words))
    words[place] = _rewritten(words[place], chance)
    return chance.choice([" ", "  ", "\t", " \\\n"]).join(words)


def _rewritten(word: str, chance: random.Random) -> str:
    if not word.isalnum():
        return word
    cut = chance.randrange(len(word))
    same = [
        f"'{word}'",
        f'"{word}"',
        f"{word[:cut]}''{word[cut:]}",
        f'{word[:cut]}""{word[cut:]}',
        f"{word[:cut]}\\{word[cut:]}",
        f"{word[:cut]}\\\n{word[cut:]}",
        "$'" + "".join(f"\\x{ord(char):02x}" for char in word) + "'",
        "$'" + "".join(f"\\{ord(char):03o}" for char in word) + "'",
    ]
    return chance.choice(same)


def disguised(command: str, chance: random.Random) -> str:
    """Returns the same words with expansions that the shell should resolve to them."""
    words = command.split(" ")
    place = chance.randrange(len(words))
    word, cut = words[place], len(words[place]) // 2
    words[place] = chance.choice(
        [
            f"{{{word},}}",
            f"{word}$x",
            f"${{y-{word}}}",
            f"{word[:cut]}${{y}}{word[cut:]}",
        ]
    )
    return " ".join(words)


# Ways to run a command that leave what it does as it is. The first take a simple command only.
PREFIXES: list[Change] = [
    lambda c, r: f"timeout 5 {c}",
    lambda c, r: f"nice {c}",
    lambda c, r: f"env LC_ALL=C {c}",
    lambda c, r: f"NO_COLOR=1 {c}",
    lambda c, r: f"stdbuf -oL {c}",
    lambda c, r: f"command {c}",
    lambda c, r: f"time {c}",
    lambda c, r: f"{c} 2>/dev/null",
    lambda c, r: f"{c} 2>&1",
    lambda c, r: f"{c} > /dev/null",
    lambda c, r: f"! {c}",
    quoted,
]
AROUND: list[Change] = [
    lambda c, r: f"( {c} )",
    lambda c, r: f"{{ {c}; }}",
    lambda c, r: f"{c} | cat",
    lambda c, r: f"{c} | sort | head -3",
    lambda c, r: f"{c} || true",
    lambda c, r: f"true && {c}",
    lambda c, r: f"{c}; echo done",
    lambda c, r: f"if true; then {c}; fi",
    lambda c, r: f"if {c}; then echo yes; else echo no; fi",
    lambda c, r: f"for i in 1 2; do {c}; done",
    lambda c, r: f"while true; do {c}; break; done",
    lambda c, r: f"case x in x) {c};; esac",
    lambda c, r: f'echo "$( {c} )"',
    lambda c, r: f"echo $( {c} )",
    lambda c, r: f"x=$( {c} ); echo done",
    lambda c, r: f"cat <( {c} )",
    lambda c, r: f'cat <<< "$( {c} )"',
    lambda c, r: f"bash -c {_quoted_for_shell(c)}",
    lambda c, r: f"{c}\npwd",
    lambda c, r: f"pwd\n{c}",
    lambda c, r: f"( cd src && ls ); {c}",
    lambda c, r: f'[[ -n "$( {c} )" ]] && echo some',
]
OUTERMOST: list[Change] = [
    lambda c, r: f"{c} # a comment; touch PWNED",
    lambda c, r: f"fn() {{ {c}; }}; fn",
    lambda c, r: f"cat <<EOF\n$( {c} )\nEOF",
    lambda c, r: f"set -euo pipefail; {c}",
    lambda c, r: f"cd src && cd .. && {c}",
]
FAITHFUL = PREFIXES + AROUND + OUTERMOST
# Ways that hide what is run, or run it somewhere unexpected.
HIDING: list[Change] = [
    lambda c, r: f"eval {_quoted_for_shell(c)}",
    lambda c, r: f"echo `{c}`",
    lambda c, r: f"x={_quoted_for_shell(c)}; $x",
    lambda c, r: f"bash <<'EOF'\n{c}\nEOF",
    lambda c, r: f"echo {_quoted_for_shell(c)} | bash",
    lambda c, r: f"{c} &",
    lambda c, r: f"echo ${{x:-$({c})}}",
    lambda c, r: f"echo $((a[$({c})]))",
    lambda c, r: f"ls > >({c})",
    lambda c, r: f"coproc {c}",
    lambda c, r: f"ls #\n{c}",
    lambda c, r: f"echo 'a\n'; {c}",
    lambda c, r: f"cat <<'EOF'\n$(x)\nEOF\n{c}",
    lambda c, r: f"a=(1); a[$({c})]=2",
    lambda c, r: f"read x <<< 1; {c}",
    lambda c, r: f"trap {_quoted_for_shell(c)} EXIT",
    lambda c, r: f"find . -maxdepth 0 -exec {c} \\;",
    lambda c, r: f"xargs -n1 {c} < notes.txt",
    lambda c, r: f"env -S {_quoted_for_shell(c)}",
    lambda c, r: f"test -v 'a[$({c})]'",
]
_LONGER_SIGNS = "$( <( >> && || << <<< $' ${ $(( )) EOF -- {a,b}"
_SIGNS = [*"'\"\\$`;&|(){}<>#\n *?[]~!=\t-@:", *_LONGER_SIGNS.split(), '$"', "\\\n"]


def harmless(chance: random.Random) -> str:
    """A composition that changes nothing, of one to three pieces."""
    command = chance.choice(HARMLESS)
    if chance.random() < 0.5:
        command = chance.choice(PREFIXES)(command, chance)
    for _ in range(chance.randint(0, 2)):
        command = chance.choice(AROUND)(command, chance)
    if chance.random() < 0.4:
        command = f"{chance.choice(HARMLESS)}{chance.choice([' && ', '; '])}{command}"
    return chance.choice(OUTERMOST)(command, chance) if chance.random() < 0.2 and "\n" not in command else command


def harmful(chance: random.Random) -> str:
    """A composition with something in it that has an effect, unless its own surroundings prevent that."""
    command = chance.choice(HARMFUL)
    if chance.random() < 0.5:
        command = chance.choice([quoted, disguised])(command, chance)
    for _ in range(chance.randint(0, 3)):
        command = chance.choice(FAITHFUL + HIDING)(command, chance)
    if chance.random() < 0.5:
        command = chance.choice(
            [f"{command}; ls", f"ls && {command}", f"ls | {command}", f"ls\n{command}", f"{command} | wc"]
        )
    return command


def damaged(chance: random.Random) -> str:
    """Returns a composition with characters inserted, removed or swapped, which two shell parsers may read
    differently."""
    seed = chance.choice(
        [
            lambda: f"echo '{chance.choice(HARMFUL)}'" if "'" not in (c := chance.choice(HARMFUL)) else f'echo "{c}"',
            lambda: f'echo "a; {chance.choice(HARMFUL)} #"',
            lambda: f"ls # {chance.choice(HARMFUL)}",
            lambda: f"cat <<'EOF'\n$({chance.choice(HARMFUL)})\nEOF",
            lambda: f"grep -n '{chance.choice(['touch PWNED', '$(touch PWNED)', '`touch PWNED`'])}' notes.txt",
            lambda: "printf '%s\\n' 'x; touch PWNED' \"y\" z",
            lambda: "git log --grep='; touch PWNED' -1",
            lambda: "x='touch PWNED'; echo \"$x\"",
            lambda: "for f in 'touch PWNED' b; do echo \"$f\"; done",
            lambda: "[ 'touch PWNED' = \"$x\" ] || echo no",
            lambda: harmless(chance) + " # touch PWNED",
            lambda: harmless(chance) + "; echo 'touch PWNED'",
        ]
    )()
    for _ in range(chance.randint(1, 3)):
        seed = _damage(seed, chance)
    return seed


def _damage(text: str, chance: random.Random) -> str:
    place = chance.randrange(len(text) + 1)
    width = chance.choice([0, 0, 1, 1, 2, 5])
    return text[:place] + chance.choice([*_SIGNS, "", ""]) + text[place + width :]
