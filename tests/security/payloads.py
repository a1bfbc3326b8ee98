"""Texts that would make a terminal move, hide, colour, ring, type or reorder, were they shown as they are."""

import unicodedata

ESC, BEL, ST, CSI, OSC, DCS = "\x1b", "\x07", "\x1b\\", "\x9b", "\x9d", "\x90"
COMMANDS = [
    "2J",
    "H",
    "31m",
    "?25l",
    "?1049h",
    "6n",
    "c",
    ">c",
    "0;0r",
    "1;31;5m",
    "?2004h",
    "18t",
    "21t",
    "5i",
    "3J",
    "1A",
    "2K",
    "999D",
    "8m",
    "38;2;0;0;0m",
]
STRINGS = [
    "0;title",
    "52;c;dG91Y2g=",
    "8;;http://evil.example",
    "7;file://x",
    "1337;File=inline=1:AAAA",
    "4;1;rgb:0/0/0",
    "9;notify",
    "777;notify;a;b",
    "133;A",
    "10;?",
    "104",
    "5522;x",
]
SINGLES = ["c", "7", "8", "D", "E", "M", "Z", "=", ">", "(0", "#8", " F", "n", "o", "|", "}", "~"]
HIDDEN = [
    "\u202e",
    "\u202d",
    "\u2066",
    "\u2067",
    "\u2068",
    "\u2069",
    "\u200e",
    "\u200f",
    "\u200b",
    "\u2060",
    "\ufeff",
    "\u00ad",
    "\u2028",
    "\u2029",
    "\U000e0041",
    "\ue000",
    "\u061c",
    "\u180e",
]


def payloads() -> list[str]:
    found = [introducer + command for introducer in (f"{ESC}[", CSI) for command in COMMANDS]
    for text in STRINGS:
        for introducer in (f"{ESC}]", OSC):
            found += [f"{introducer}{text}{end}shown" for end in (BEL, ST, "\x9c", "")]
    for introducer in (f"{ESC}P", DCS, f"{ESC}_", f"{ESC}^", f"{ESC}X", "\x98", "\x9e", "\x9f"):
        found += [
            f"{introducer}{body}{end}x"
            for body in ("+q544e", "$qm", "tmux;\x1b\x1b]0;x\x07")
            for end in (ST, "\x9c", "")
        ]
    found += [ESC + single for single in SINGLES]
    found += [chr(code) for code in (*range(32), *range(127, 160))]
    found += [f"a{chr(code)}b{chr(code)}" for code in (*range(32), *range(127, 160))]
    found += [f"ls {mark}; rm -rf x {mark}" for mark in HIDDEN] + [f"{ESC}{mark}[31m" for mark in HIDDEN]
    nested = [
        f"{ESC}{ESC}[31m",
        f"{ESC}[{ESC}[31m",
        f"{ESC}]0;{ESC}[31m{BEL}",
        f"{ESC}[31{ESC}]0;x{BEL}m",
        f"{CSI}{CSI}1m",
    ]
    found += nested + [text * 3 for text in nested] + [f"x\r{text}" for text in nested]
    found += [f"safe{ESC}[{n}D{'x' * n}" for n in range(1, 60)] + [f"{ESC}[{n};{n}H" for n in range(60)]
    found += ["e" + "\u0301" * count for count in range(9, 40)]
    return list(dict.fromkeys(found))


PAYLOADS = payloads()


def harmless(text: str) -> bool:
    return all(
        char in "\n\t\u200d\u200c" or unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
        for char in text
    )
