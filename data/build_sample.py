#!/usr/bin/env python3
"""Build the sample corpus: docstrings of the standard library and of the installed packages, no download.

Guarantee: the same environment and arguments give the same bytes; the file appears whole or not at all;
    nothing is imported (`ast` reads the sources), so no package's code runs.
Cost: nearly all of it is parsing, some 4 MB of source a second and core, so it stops with a package once its share is
    full: 15,000 documents take some 4 s on two cores, all there is takes minutes. Memory holds the sample once.
Shape: one package after the other, file by file, so the order is as monochrome as a corpus gets. The 100
    largest packages share the documents by the square root of their size; in each the files with the longest
    docstrings are read first, so that the lengths have the tail of real corpora, which a sample of this size
    would not show otherwise.
Weakness: other packages make another corpus: figures measured on the sample hold for constraints.txt.

One JSON object a line: `text` (the docstring, cleaned as `inspect.cleandoc` does), `source` (top-level
package), `path` (file below its root, then the qualified name: `numpy/linalg/_linalg.py:solve`).

With --chat a line is a conversation about one to three functions or classes of a file, two to six turns:
`messages`, `source`, `path` of the first, and `language`, that of the questions. In some the user shows the code
and the assistant answers in a sentence (python); in the others the user gives the signature and the assistant
answers with the docstring (en). Each package has its own share of the former, so that tokens and tokens that are
trained on have unlike mixes.
"""

from __future__ import annotations

import argparse
import ast
import gc
import hashlib
import json
import math
import os
import sys
import sysconfig
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

# Tests hold few docstrings for their size; site-packages below the standard library is a root of its own.
SKIPPED_FOLDERS = {"__pycache__", "site-packages", "dist-packages", "test", "tests", "testing", "_tests"}
# Enough to be diverse: the next hundreds are mostly single modules, taken only if these do not suffice.
PACKAGES = 100
# Files of a package, largest first, that are looked through for long docstrings before any is parsed.
RANKED_FILES = 200
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# Lines of code that a question shows at most.
CODE_LINES = 120
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One Python file: where it is, its path below the root, its size in bytes."""

    location: Path
    path: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What was collected: the lines of the file in order, and what to say about them."""

    lines: list[bytes]
    packages: int
    skipped_files: int


def default_roots() -> list[Path]:
    """The folders that the running interpreter imports its standard library and its packages from."""
    found = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]
    return [root for root in dict.fromkeys(found) if root.is_dir()]


def find_packages(roots: list[Path]) -> dict[str, list[SourceFile]]:
    """Python files of each top-level package, largest file first; names ascending."""
    packages: dict[str, list[SourceFile]] = {}
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
            for name in names:
                # Editable installs leave a generated finder that holds this machine's paths.
                if not name.endswith(".py") or name.startswith("__editable__"):
                    continue
                location = Path(folder, name)
                path = location.relative_to(root).as_posix()
                package = path.split("/", 1)[0].removesuffix(".py")
                size = location.stat().st_size
                packages.setdefault(package, []).append(SourceFile(location=location, path=path, size=size))
    for files in packages.values():
        files.sort(key=lambda file: (-file.size, file.path))
    return dict(sorted(packages.items()))


def docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(qualified name, cleaned docstring) of module (name ""), classes and functions, in source order."""
    for name, _, text in _documented(tree):
        yield name, text


def _documented(tree: ast.Module) -> Iterator[tuple[str, Any, str]]:
    """The same with the node between the two."""
    stack: list[tuple[ast.AST, str]] = [(tree, "")]
    while stack:
        node, name = stack.pop()
        if isinstance(node, (ast.Module, *_SCOPES)):
            text = ast.get_docstring(node)
            if text and text.strip():
                yield name, node, text
        # Only statements are entered: expressions are most of a tree and hold no docstring.
        inner = [child for block in _BLOCKS for child in getattr(node, block, ())]
        for child in reversed(inner):
            if isinstance(child, _SCOPES):
                stack.append((child, f"{name}.{child.name}" if name else child.name))
            elif any(hasattr(child, block) for block in _BLOCKS):
                stack.append((child, name))


Record = dict[str, Any]
Reader = Callable[[str, SourceFile], Iterator[Record]]
"""The records of a file of a package."""


def docstring_records(name: str, file: SourceFile) -> Iterator[Record]:
    """A record for each docstring."""
    for qualified, text in docstrings(ast.parse(file.location.read_bytes())):
        yield {"text": text, "source": name, "path": f"{file.path}:{qualified}" if qualified else file.path}


def chat_records(name: str, file: SourceFile) -> Iterator[Record]:
    """A record for each one to three documented functions and classes, in source order."""
    content = file.location.read_bytes()
    tree, lines = ast.parse(content), content.decode("utf-8", "replace").splitlines()
    documented = [
        (qualified, node, text)
        for qualified, node, text in _documented(tree)
        if not isinstance(node, ast.Module)
    ]
    while documented:
        path = f"{file.path}:{documented[0][0]}"
        count = 1 + _draw(path, "turns") % 3
        about, documented = documented[:count], documented[count:]
        # Per mille of the package's conversations that show code.
        shows_code = _draw(path, "kind") % 1000 < _draw(name, "share") % 1000
        messages = []
        for _, node, text in about:
            question = _with_code(node, lines) if shows_code else f"What does this do?\n\n{_signature(node)}"
            answer = text.split("\n\n")[0] if shows_code else text
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        yield {
            "messages": messages,
            "source": name,
            "path": path,
            "language": "python" if shows_code else "en",
        }


def _draw(text: str, what: str) -> int:
    """A number that looks random, and is the same in every run."""
    return zlib.crc32(f"{what} {text}".encode("utf-8", "replace"))


def _with_code(node: Any, lines: list[str]) -> str:
    docstring = node.body[0]
    code = [*lines[node.lineno - 1 : docstring.lineno - 1], *lines[docstring.end_lineno : node.end_lineno]]
    return "Say in a sentence what this does.\n\n" + "\n".join(code[:CODE_LINES])


def _signature(node: Any) -> str:
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}({', '.join(map(ast.unparse, node.bases))})"
    return f"def {node.name}({ast.unparse(node.args)})"


def longest_quoted(content: bytes) -> int:
    """Bytes of the longest triple-quoted piece: what the longest docstring can be, known without parsing."""
    return max(map(len, content.split(b'"""')[1::2]), default=0)


Document = tuple[str, bytes]
"""The path of its file, and its line."""


@dataclass(frozen=True, kw_only=True)
class Read:
    """What was read of a package: its documents, files that hold no Python, and the files that are left."""

    documents: list[Document]
    skipped_files: int
    left: list[SourceFile]


def read_package(
    name: str, files: list[SourceFile], at_least: int, reader: Reader = docstring_records
) -> Read:
    """Read files of a package, those with the longest docstrings first, until there are `at_least` documents."""
    ranked = sorted(files[:RANKED_FILES], key=lambda file: -longest_quoted(file.location.read_bytes()))
    return read_files(name, ranked + files[RANKED_FILES:], at_least, reader)


def read_files(name: str, files: list[SourceFile], at_least: int, reader: Reader) -> Read:
    """The same in the order given."""
    documents: list[Document] = []
    skipped = done = 0
    for file in files:
        if len(documents) >= at_least:
            break
        done += 1
        try:
            records = list(reader(name, file))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            skipped += 1
            continue
        for record in records:
            try:
                line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
            except UnicodeEncodeError:  # A lone surrogate, spelled as an escape.
                continue
            documents.append((file.path, line))
    return Read(documents=documents, skipped_files=skipped, left=files[done:])


class Package:
    """The documents of one package: those that were read beforehand, if any, then file by file as they are asked
    for."""

    def __init__(
        self, name: str, weight: int, files: list[SourceFile], read: Read | None, reader: Reader
    ) -> None:
        self.name = name
        self.reader = reader
        self.weight = weight
        self.skipped_files = 0
        self._documents = self._in_turn(files, read)

    def take(self) -> Document | None:
        """The next document, or None when there are no more."""
        return next(self._documents, None)

    def _in_turn(self, files: list[SourceFile], read: Read | None) -> Iterator[Document]:
        read = read or read_package(self.name, files, 1, self.reader)
        while True:
            self.skipped_files += read.skipped_files
            yield from read.documents
            if not read.left:
                return
            read = read_files(self.name, read.left, 1, self.reader)


def collect(
    files: dict[str, list[SourceFile]],
    *,
    documents: int,
    max_bytes: int | None = None,
    reader: Reader = docstring_records,
) -> Sample:
    """Collect `documents` documents or, if `max_bytes` is given, that many bytes, rounded up to a document.

    Small packages come first, so that what they cannot give goes to the larger ones; further rounds take what
    is still missing from whoever has more. Lines come out by package, file and place in the file.
    """
    weights = {name: math.isqrt(sum(file.size for file in of)) for name, of in files.items()}
    names = sorted(files, key=lambda name: (weights[name], name))
    # The largest first, so that no long one is left for the end.
    largest = names[: -PACKAGES - 1 : -1]
    total = max(1, sum(weights[name] for name in largest))
    shares = [documents * weights[name] // total if max_bytes is None else 1 for name in largest]
    with ProcessPoolExecutor() as pool:
        read = dict(
            zip(
                largest,
                pool.map(partial(read_package, reader=reader), largest, map(files.get, largest), shares),
                strict=True,
            )
        )
    packages = [Package(name, weights[name], files[name], read.get(name), reader) for name in names]
    missing = documents if max_bytes is None else max_bytes
    taken: list[tuple[str, str, bytes]] = []
    for group in (packages[-PACKAGES:], packages[:-PACKAGES]):
        unfinished = group
        while missing > 0 and unfinished:
            total = sum(package.weight for package in unfinished)
            asked, unfinished = unfinished, []
            for package in asked:
                share = missing * package.weight // total if total else missing
                total -= package.weight
                while share > 0 and (document := package.take()) is not None:
                    cost = 1 if max_bytes is None else len(document[1])
                    share, missing = share - cost, missing - cost
                    taken.append((package.name, *document))
                if share <= 0:
                    unfinished.append(package)
    taken.sort(key=lambda item: item[:2])  # Stable: the documents of one file keep their order.
    return Sample(
        lines=[line for _, _, line in taken],
        packages=len({name for name, _, _ in taken}),
        skipped_files=sum(package.skipped_files for package in packages),
    )


def environment(roots: list[Path], **arguments: Any) -> dict[str, Any]:
    """What the sample depends on: this script, the interpreter, the distributions, the arguments."""
    installed = sorted(entry.name for root in roots for entry in root.glob("*.dist-info"))
    return {
        "builder": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
        "python": sys.version,
        "roots": [str(root) for root in roots],
        "installed": installed,
        **arguments,
    }


def write_whole(path: Path, content: bytes) -> None:
    """Write the file under another name, then rename it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def build(
    output: Path,
    *,
    documents: int = 15_000,
    megabytes: float | None = None,
    roots: list[Path] | None = None,
    chat: bool = False,
) -> str:
    """Build the sample unless it is there and was made for this environment; return the line to print.

    A sample that was edited by hand (say, appended to, in order to see an incremental run) is kept as it is.
    """
    started = time.perf_counter()
    roots = default_roots() if roots is None else roots
    stamp = output.with_name(output.name + ".stamp")
    made_for = environment(roots, documents=documents, megabytes=megabytes, chat=chat)
    if output.exists() and stamp.exists():
        known = json.loads(stamp.read_bytes())
        if known["made_for"] == made_for:
            return f"{output}: nothing to do, built with {known['summary']}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Invalid escapes in other people's sources.
        max_bytes = None if megabytes is None else int(megabytes * 1e6)
        sample = collect(
            find_packages(roots),
            documents=documents,
            max_bytes=max_bytes,
            reader=chat_records if chat else docstring_records,
        )
    content = b"".join(sample.lines)
    unit = "conversations" if chat else "documents"
    summary = f"{len(sample.lines):,} {unit} of {sample.packages} packages, {len(content) / 1e6:.1f} MB"
    output.parent.mkdir(parents=True, exist_ok=True)
    # Else a crash before the new stamp is written would leave the old one beside a new file.
    stamp.unlink(missing_ok=True)
    write_whole(output, content)
    write_whole(stamp, json.dumps({"made_for": made_for, "summary": summary}, indent=1).encode())
    skipped = f", {sample.skipped_files} files skipped (not Python)" if sample.skipped_files else ""
    return f"{output}: {summary}{skipped}, {time.perf_counter() - started:.1f} s"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Build the sample corpus from installed docstrings.")
    parser.add_argument("--output", type=Path, help="default data/sample/docs.jsonl, or chats.jsonl")
    parser.add_argument(
        "--chat", action="store_true", help="conversations about functions, not their docstrings"
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--documents", type=int, default=15_000, help="stop at this many (default 15000)")
    size.add_argument("--megabytes", type=float, help="stop at this many megabytes instead")
    given = parser.parse_args(arguments)
    if given.documents < 1 or (given.megabytes is not None and given.megabytes <= 0):
        parser.error("the size must be positive: --documents 1 or more, or --megabytes above 0")
    gc.disable()  # Syntax trees hold no cycles, and looking for some nearly doubles the time.
    output = given.output or Path("data/sample", "chats.jsonl" if given.chat else "docs.jsonl")
    print(build(output, documents=given.documents, megabytes=given.megabytes, chat=given.chat))


if __name__ == "__main__":
    main()
