"""Made-up secrets of many formats, the same in every run, which must not appear in any stored or sent text."""

import random
import string
from collections.abc import Callable

LETTERS, UPPER, HEX = string.ascii_letters + string.digits, string.ascii_uppercase + string.digits, "0123456789abcdef"
WIDE = LETTERS + "_-"
Make = Callable[[Callable[..., str]], str]

FORMATS: list[Make] = [
    lambda r: f"sk-{r(48)}",
    lambda r: f"sk-ant-api03-{r(80, WIDE)}AA",
    lambda r: f"sk-proj-{r(120, WIDE)}",
    lambda r: f"ghp_{r(36)}",
    lambda r: f"gho_{r(36)}",
    lambda r: f"ghs_{r(36)}",
    lambda r: f"github_pat_{r(22)}_{r(59)}",
    lambda r: f"AIza{r(35, WIDE)}",
    lambda r: f"xai-{r(80)}",
    lambda r: f"gsk_{r(52)}",
    lambda r: f"hf_{r(34)}",
    lambda r: f"AKIA{r(16, UPPER)}",
    lambda r: f"ASIA{r(16, UPPER)}",
    lambda r: f"xoxb-{r(12)}-{r(24)}",
    lambda r: f"ya29.{r(60, WIDE)}",
    lambda r: f"glpat-{r(20)}",
    lambda r: f"npm_{r(36)}",
    lambda r: f"pypi-AgEIcHlwaS5vcmc{r(60)}",
    lambda r: f"nvapi-{r(64, WIDE)}",
    lambda r: f"SG.{r(22)}.{r(43)}",
    lambda r: f"eyJhbGciOiJIUzI1NiJ9.{r(60)}.{r(43)}",
    lambda r: f"sk_live_{r(24)}",
    lambda r: f"rk_test_{r(24)}",
    lambda r: f"whsec_{r(32)}",
    lambda r: f"r8_{r(37)}",
    lambda r: f"pplx-{r(48)}",
    lambda r: f"tvly-{r(32)}",
    lambda r: f"lin_api_{r(40)}",
    lambda r: f"shpat_{r(32, HEX)}",
    lambda r: f"dop_v1_{r(64, HEX)}",
    lambda r: f"dckr_pat_{r(27)}",
    lambda r: f"hvs.{r(90)}",
    lambda r: f"figd_{r(40)}",
    lambda r: f"PMAK-{r(24, HEX)}-{r(34, HEX)}",
    lambda r: f"{7_000_000_000 + len(r(9))}:AA{r(33)}",
    lambda r: f"SK{r(32, HEX)}",
    lambda r: f"key-{r(32, HEX)}",
    lambda r: f"ATATT3xFfGF0{r(60)}",
    lambda r: f"glsa_{r(32)}_{r(8, HEX)}",
    lambda r: f"sq0atp-{r(22)}",
]


def canaries(count: int, seed: int) -> list[str]:
    """So many of them, all different, every format in turn."""
    dice = random.Random(seed)

    def drawn(length: int, alphabet: str = LETTERS) -> str:
        while True:
            text = "".join(dice.choice(alphabet) for _ in range(length))
            if any(char.isdigit() for char in text) and text[-1].isalnum():
                return text

    return [FORMATS[number % len(FORMATS)](drawn) for number in range(count)]


def plain_secrets(count: int, seed: int) -> list[str]:
    """Secrets without a known format: only a redactor that received them can find them."""
    dice = random.Random(seed)
    words = ["amber", "birch", "cedar", "delta", "ember", "flint", "grove", "haven", "inlet", "jetty"]
    return [" ".join(dice.sample(words, 3)) + f' "{number}" \\ ü' for number in range(count)]
