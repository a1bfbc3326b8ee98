"""Makes shell scripts from a grammar: functions, wrappers, expansions, here-documents, arrays, arithmetic, redirects.

Each script mixes commands that only read with words that have an effect if the shell runs or expands them otherwise
than the analyser expects: names of effectful programs as data, paths outside as values, redefined names.
"""

import random
import shlex

READING = ["ls", "cat README.md", "wc -l notes.txt", "echo a", "grep -n x notes.txt", "head -n 1 data.csv", "true", ":"]
EFFECTFUL = ["touch PWNED", "rm notes.txt", "tee PWNED", "./script.sh", "cat ../out/secret.txt", "cp README.md PWNED"]
NAMES = ["x", "y", "f", "g", "touch", "ls2", "_", "TZ", "LANG", "LINES", "REPLY", "i", "cd", "rm", "node", "a"]
WORDS = [
    *("ls", "touch", "README.md", "notes.txt", "../out/secret.txt", "PWNED", "-oPWNED", "src", "1", "5", "a b", "*"),
    *(
        "cat",
        "~/.ssh/id_rsa",
        "/dev/null",
        "'touch PWNED'",
        '"a b"',
        "{a,b}",
        "{~/x,README.md}",
        "{01..02}",
        "link_out",
    ),
    *("$x", '"$x"', "$y", "$_", "$1", '"$@"', "$*", "$#", "$?", "$TZ", "${x}", "${x:-ls}", "${x:-<(touch PWNED)}"),
    *("${x#a}", "${#x}", "${x:0:2}", "${x[0]}", "${x/a/touch}", "${x^}", "$((1+2))", "$((y))", "$((y+1))", "$[1]"),
    *(
        "$(echo touch)",
        '"$(echo README.md)"',
        "`echo touch`",
        "$(ls)",
        "$(echo ' -oPWNED')",
        "x$x",
        'x"$x"',
        "a$(echo b)",
    ),
    *(
        "$(ls | wc -l)",
        '"$(wc -l < notes.txt)"',
        "$(git ls-files)",
        "$(find src -name '*.py')",
        "$(grep -c x notes.txt)",
    ),
    *("$'touch'", "\\touch", "t''ouch", '"to"uch', "--", "-", "-n", "+e", "x=1", "k=~/x", "a=b", "R*", "[a-z]*", "?"),
]
PLAIN_WORDS = ["a", "README.md", "notes.txt", "src", "ls", "touch", "1", '"$x"', "$x", "x", "5", "'a b'", "$y", '"$1"']
REDIRECTS = [
    *("> /dev/null", "2>&1", "< README.md", "<<< a", "> PWNED", ">> notes.txt", "&> /dev/null", ">| PWNED", "2> PWNED"),
    *(
        "< ../out/secret.txt",
        ">&2",
        ">&1-",
        ">&²",
        ">& PWNED",
        "3< README.md",
        "<&0",
        "> $x",
        '> "$x"',
        "< $x",
        "1<> PWNED",
    ),
    *("< <(ls)", "> >(tee PWNED)", "2>/dev/null", "> /dev/$x", "{x}> PWNED"),
]
WRAPPERS = [
    "command",
    "env",
    "time",
    "nice",
    "timeout 5",
    "builtin",
    "exec",
    "nohup",
    "xargs",
    "command -p",
    "!",
    "env TZ=UTC",
]

# Pieces of scripts in three steps: a state, a change of it that a shell may apply or not, and a use of the state.
# `@` is one of two values, of which only one has an effect where it is used.
STATES = r"""
x=@
_=@
TZ=@
declare x=@
typeset x=@
touch() { ls; }
touch() { echo a; }
LINES=@
f() { x=@; }
f() { local x=@; }
f() { read "x"; }
f() { unset touch; }
f() { $x PWNED; }
y=@; x=$y
f() { cat $x; }
f() { $TZ PWNED; }
cd src
set -f
set -e
x=/dev/null
f() { echo $1; }
n=@
""".strip().splitlines()
CHANGES = r"""
x=@
local x=@
declare x=@
typeset x=@
export TZ=@
x=@ true
TZ=@ true
TZ=@ :
unset x
f
read "x" <<< @
read x <<< @
read 'x' < notes.txt
echo @
: @
unset touch
unset -v x
f @
true
(x=@)
{ x=@; }
x=@ | true
x=@ &
false && x=@
true || x=@
if true; then x=@; fi
command x=@
for x in @; do :; done
for i in 1 2; do f; done
for i in 1 2; do x=@; done
while read x; do :; done < a
case @ in ls) x=@;; esac
TZ=@ f
f <<< @
cd src
cd src && true
time cd src
command cd src
cd nope
x=PWNED > $x
x+=@
x={,@}
printf -v x @
command unset touch
set -- @
shift
env cd src
x=$x
""".strip().splitlines()
USES = r"""
$x PWNED
$x README.md
$_ PWNED
$TZ PWNED
touch PWNED
cat $x
cat "$x"
f
f @
command touch PWNED
env touch PWNED
time touch PWNED
exec touch PWNED
/usr/bin/touch PWNED
cat $_
echo PWNED | xargs touch
find . -maxdepth 0 -exec touch PWNED \;
nice touch PWNED
ls > $x
cat < $x
cat ../out/secret.txt
cat secret.txt
for i in 1 2; do f; done
for i in 1 2; do cat $x; f; done
cat $1
bash -c '$x PWNED'
$(echo $x) PWNED
cat ${x}
cat $LINES
[[ $n -gt 5 ]]
echo $((n + 1))
f; f
while cat $x; do f; break; done
cat <<< $x
(f; cat $x)
if f; then cat $x; fi
f | cat $x
f && $x PWNED
""".strip().splitlines()
STATE_VALUES = ["ls", "touch", "README.md", "../out/secret.txt", "cat", "'a[$(touch PWNED)]'", "5", "src", "PWNED"]


class ScriptGenerator:
    """Makes random scripts; the same seed makes the same scripts."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def make(self) -> str:
        script = self._sequence(0) if self.chance.random() < 0.4 else self._steps()
        kind = self.chance.random()
        if kind < 0.12:
            return f"{self.chance.choice(['sh', 'dash', 'bash'])} -c {shlex.quote(script)}"
        if kind < 0.16:
            arguments = " ".join(self._word() for _ in range(2))
            return (
                f"{self.chance.choice(['sh', 'bash'])} -{self.chance.choice('eux')}c {shlex.quote(script)} {arguments}"
            )
        if kind < 0.2:
            return f"bash -c \"$(cat <<'E'\n{script}\nE\n)\""
        return script

    def _steps(self) -> str:
        pieces = [
            *self.chance.choices(STATES, k=self.chance.choice([1, 2, 2, 3])),
            *self.chance.choices(CHANGES, k=self.chance.choice([0, 1, 1, 2])),
            self.chance.choice(USES),
        ]
        text = self._pick("; ", "; ", "\n").join(pieces)
        while "@" in text:
            text = text.replace("@", self.chance.choice(STATE_VALUES), 1)
        return text

    def _pick(self, *choices: str) -> str:
        return self.chance.choice(choices)

    def _name(self) -> str:
        return self.chance.choice(NAMES if self.chance.random() < 0.4 else ["x", "y", "f"])

    def _word(self) -> str:
        """Returns a word, mostly one that the analyser accepts: one unknown part makes the whole script unknown."""
        if self.chance.random() < 0.6:
            return self.chance.choice(PLAIN_WORDS)
        word = self.chance.choice(WORDS)
        return word if self.chance.random() < 0.9 else word + self.chance.choice(WORDS)

    def _assignment(self) -> str:
        form = self._pick(
            "{n}={w}", "{n}={w}", "{n}={w}", "{n}={w}", "{n}+={w}", "{n}=({w} a)", "{n}[0]={w}", "{n}={w} {m}={v}"
        )
        return form.format(n=self._name(), w=self._word(), m=self._name(), v=self._word())

    def _declaration(self) -> str:
        builtin = self._pick(
            "local", "declare", "typeset", "export", "readonly", "unset", "read", "declare -n", "unset -f"
        )
        if builtin in {"unset", "unset -f", "read"}:
            return f"{builtin} {self._pick('', '-r ', '--  ')}{self._quoted(self._name())}"
        return f"{builtin} {self._name()}={self._word()}"

    def _quoted(self, word: str) -> str:
        return self._pick("{}", "{}", '"{}"', "'{}'", "$'{}'").format(word)

    def _command(self) -> str:
        kind = self.chance.random()
        if kind < 0.36:
            return self.chance.choice(READING)
        if kind < 0.375:
            return self.chance.choice(EFFECTFUL)
        if kind < 0.56:
            program = self._pick("cat", "echo", "ls", "sort", "wc", "grep x", "printf", "test", "find .", "cd", "uniq")
            return f"{program} {' '.join(self._word() for _ in range(self.chance.randint(1, 2)))}"
        if kind < 0.68:
            return f"{self._pick('$x', '$y', '$_', '$1', '$TZ', '$LANG', self._name(), self._name())} {self._word()}"
        if kind < 0.8:
            return self._assignment()
        if kind < 0.88:
            return self._declaration()
        if kind < 0.93:
            return (
                f"{self._pick('TZ', 'LANG', 'x', '_')}={self._pick('touch', 'ls', 'a')} {self._name()} {self._word()}"
            )
        return self._test()

    def _test(self) -> str:
        left, right = self._word(), self._word()
        return self._pick(
            f"[[ {left} -eq {right} ]]",
            f"[[ $x -gt {self.chance.randint(0, 9)} ]]",
            "[ $y -lt 5 ]",
            f"echo $((x + {self.chance.randint(0, 9)}))",
            f"wc -l {left} {self._pick('$(git ls-files)', '$(cat notes.txt)')}",
            f"git ls-files | {self._pick('', 'head -n 2 | ', 'sed s/R/x/ | ')}xargs {self._pick('wc', 'cat', 'touch')}",
            f"[[ {left} == {right} ]]",
            f"[[ -n {left} ]]",
            f"[ {left} = {right} ]",
            f"[ {left} ]",
            f"(( {left} ))",
            f"test {left} -gt {right}",
            f"let {left}",
        )

    def _simple(self) -> str:
        command = self._command()
        for _ in range(self.chance.choice([0, 0, 0, 0, 0, 0, 1, 1, 2])):
            command = f"{self.chance.choice(WRAPPERS)} {command}"
        if self.chance.random() < 0.1:
            command = f"{command} {self.chance.choice(REDIRECTS)}"
        return command

    def _here_document(self) -> str:
        end = self._pick("E", "ls", "touch")
        start = self._pick(end, f"'{end}'", f'"{end}"', f"\\{end}")
        body = "\n".join(
            self._pick(self._word(), self.chance.choice(EFFECTFUL), end + " ", "x" + end, "") for _ in range(2)
        )
        tail = self._pick("", "", " | cat", " | wc -l", " | sh", " && ls", "; ls", " > PWNED", " | grep x | head")
        command = self._pick("cat", "grep x", "wc", "read x", "sh", "cat -", "f", "xargs")
        return f"{command} <<{self._pick('', '', '-', ' ')}{start}{tail}\n{body}\n{end}"

    def _statement(self, depth: int) -> str:
        kind = self.chance.random()
        if depth > 2 or kind < 0.45:
            return self._simple()
        inner = self._sequence(depth + 1)
        forms = [
            lambda: f"{self._name()}() {{ {inner}; }}",
            lambda: f"{self._name()}() {{ {inner}; }}",
            lambda: f"function {self._name()} {{ {inner}; }}",
            lambda: f"{self._name()}() ( {inner} )",
            lambda: f"( {inner} )",
            lambda: f"{{ {inner}; }}",
            lambda: f"if {self._simple()}; then {inner}; else {self._simple()}; fi",
            lambda: f"for {self._name()} in {self._word()} {self._word()}; do {inner}; done",
            lambda: f"for {self._name()} in 1 2; do {inner}; done",
            lambda: f"while {self._simple()}; do {inner}; break; done",
            lambda: f"case {self._word()} in {self._pick('a', '*', 'ls|touch')}) {inner};; esac",
            lambda: f"{self._simple()} | {self._simple()}",
            lambda: f"{self._simple()} && {self._simple()}",
            lambda: f"{self._simple()} || {self._simple()}",
            lambda: f"{self._simple()} &",
            lambda: f"x=$({inner})",
            lambda: f'echo "$({inner})"',
            lambda: f"cat <({self._simple()})",
            lambda: (
                f"find . -name '*.py' -exec {self._simple()} {self._pick('{}', '')} {self._pick('+', chr(92) + ';')}"
            ),
            lambda: f"echo {self._word()} | xargs {self._pick('', '-n 1 ', '-I X ')}{self._simple()}",
            lambda: f"{inner} {self.chance.choice(REDIRECTS)}",
            self._here_document,
            self._here_document,
        ]
        return self.chance.choice(forms)()

    def _sequence(self, depth: int) -> str:
        parts = [self._statement(depth) for _ in range(self.chance.choice([1, 2, 2, 3, 4]) if depth == 0 else 1)]
        if depth == 0 and self.chance.random() < 0.35:
            parts.append(f"{self._pick('f', 'g', 'touch', '$x', '$y', 'cat $x', 'cat $y')} {self._word()}")
        text = parts[0]
        for part in parts[1:]:
            text += ("\n" if "\n" in text else self._pick("; ", "; ", "\n", " && ")) + part
        return text
