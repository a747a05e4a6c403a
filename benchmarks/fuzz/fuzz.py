"""A million damaged JSONL lines through the whole pipeline: none lost, none altered, none that stops it.

Every line is a sound record, or one with flipped bits, bytes cut off, inserted, deleted or repeated, or spliced with
another. After the run: accepted + rejected + unfinished lines = lines read that are not blank; the output holds exactly
the lines that were not refused, byte for byte; every line of rejects.jsonl names its line and restores its bytes.

python benchmarks/fuzz/fuzz.py [--lines 1000000] [--seed 0] [--folder /tmp/fuzz]
"""

from __future__ import annotations

import argparse
import base64
import random
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson

from dagster_divorder import run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.settings import Settings
from dagster_divorder.store.state import Receipt

PIECES = (
    *(b"\n", b"\r", b"\r\n", b"\0", b"\t", b" ", b"\x0b", b"\xef\xbb\xbf", b"\xff", b"\xc3", b"\xed\xa0\x80"),
    *(b'"', b"\\", b"\\u", b"\\ud800", b"\\u0000", b"{", b"}", b"[", b"]", b":", b",", b"[" * 2000, b"{}"),
    *(
        b"1e999",
        b"-",
        b"NaN",
        b"null",
        b"true",
        b'"text"',
        b'"text": 1',
        b'"text": ""',
        b"9" * 50,
        b"/*",
        b"'",
    ),
)
WORDS = (
    *("wave", "tide", "boat", "harbour", "salt", "gull", "net", "anchor", "sail", "reef", "0", "1.5", "-7"),
    *("naïve", "\u05d0\u05d1", "漢字", "\U0001f6f6", "a\u0301", "\u2028", "<|endoftext|>"),
    *("\\", "/", '"', "'", "\t", "\0"),
)


def record(choose: random.Random) -> bytes:
    """A sound record, some with fields of every JSON type and with escapes."""
    fields = {
        "id": choose.randrange(1 << 40),
        "text": " ".join(choose.choices(WORDS, k=choose.randrange(1, 30))),
        "score": choose.choice([choose.random(), None, True, 3, "n/a"]),
        "source": {"name": choose.choice(WORDS), "tags": [choose.choice(WORDS), [], {}]},
    }
    line = orjson.dumps(fields)
    return line if choose.random() < 0.7 else line.replace(b"a", b"\\u0061")


def damaged(line: bytes, other: bytes, choose: random.Random) -> bytes:
    """A line after one to three mutations."""
    for _ in range(choose.randrange(1, 4)):
        at = choose.randrange(len(line) + 1)
        to = min(len(line), at + choose.randrange(1, 20))
        kind = choose.randrange(7)
        if kind == 0 and at < len(line):
            line = line[:at] + bytes([line[at] ^ 1 << choose.randrange(8)]) + line[at + 1 :]
        elif kind == 1:
            line = line[:at]
        elif kind == 2:
            line = line[:at] + choose.choice(PIECES) + line[at:]
        elif kind == 3:
            line = line[:at] + line[to:]
        elif kind == 4:
            line = line[:to] + line[at:]
        elif kind == 5:
            line = line[:at] + other[choose.randrange(len(other)) :]
        else:
            line = line[:at] + choose.randbytes(choose.randrange(1, 4)) + line[to:]
    return line


def fuzzed(lines: int, seed: int) -> Iterator[bytes]:
    """Lines without their terminator, half of them sound; a mutation may cut a line in two."""
    choose = random.Random(seed)
    other = record(choose)
    for _ in range(lines):
        line = record(choose)
        yield line if choose.random() < 0.5 else damaged(line, other, choose)
        other = line


def check(read: bytes, output: Path, receipt: Receipt) -> dict[str, int]:
    """Compare what was read with what came out; the counts. AssertionError where a line is lost, doubled or altered."""
    lines = {
        number: line.removesuffix(b"\r")
        for number, line in enumerate(read.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1)
        if line.strip()
    }
    total = len(lines)
    rejects = [orjson.loads(line) for line in (output / "rejects.jsonl").read_bytes().splitlines()]
    for reject in rejects:
        raw = base64.b64decode(reject["raw_base64"]) if "raw_base64" in reject else reject["raw"].encode()
        assert raw == lines.pop(reject["line"]), reject
        assert reject["reason"], reject
    partial = receipt.figures["partial_lines"]
    if partial:
        del lines[max(lines)]
    assert receipt.figures["records"] == len(lines)
    assert receipt.figures["rejected_records"] == len(rejects)
    assert len(lines) + len(rejects) + partial == total
    out = (output / "curated.jsonl").read_bytes()
    assert Counter(out.removesuffix(b"\n").split(b"\n")) == Counter(lines.values())
    return {"lines": total, "accepted": len(lines), "rejected": len(rejects), "unfinished": partial}


def settings(folder: Path) -> Settings:
    return Settings(
        input={"paths": [str(folder / "in.jsonl")], "max_reject_share": 1.0},
        store={"path": folder / "store"},
        output={"path": folder / "out", "sidecars": ()},
        advanced={"vocab_size": 1024, "token_dims": 16},
        clusters={"k": 10},
        order={"traits": {"cluster": 1.0, "length": 1.0, "score": 1.0, "source": 1.0}},
        sequence={"length": 1024, "batch": 32},
    )


def run(folder: Path, lines: int, seed: int, log: Callable[[str], None] = lambda _: None) -> dict[str, int]:
    """Make the lines, run every stage on them, and check what came out."""
    path = folder / "in.jsonl"
    path.write_bytes(b"\n".join(fuzzed(lines, seed)))
    log(f"made {path.stat().st_size / 1e6:,.0f} MB")
    start = time.perf_counter()
    receipts = run_all(settings(folder), Silent())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    log(f"ran in {time.perf_counter() - start:,.1f} s, peak memory of this process {peak:.2f} GB")
    log(" ".join(f"{stage} {receipt.figures['seconds']:.1f}" for stage, receipt in receipts.items()))
    return check(path.read_bytes(), folder / "out", receipts["raw_docs"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where to work; default: a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        counts = run(Path(folder), options.lines, options.seed, print)
    print(" ".join(f"{name} {count:,}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
