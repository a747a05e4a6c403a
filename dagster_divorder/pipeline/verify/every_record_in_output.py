"""every_record_in_output: the output's records against those that were read from the input, as multisets.

The input's side was summed up as it was read, by a hash that no id depends on, so that only the output is read: once,
in blocks. (JSON lines made of Parquet rows are other bytes; there the stored rows are rendered once more.)
"""

from __future__ import annotations

from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.raw_docs import load_multiset, load_view
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.verify import Finding
from dagster_divorder.store.curated import MANIFEST, RECORDS, read_manifest
from dagster_divorder.store.multiset import Multiset
from dagster_divorder.store.output_records import stored_as_json, written


def look(run: Run) -> Finding:
    receipt = run.receipt("curated_output")
    folder = run.settings.output.path
    remedy = (
        f"delete {folder / MANIFEST} and materialise curated_output again, which then writes every file anew; until "
        "then do not train on this output"
    )
    manifest = read_manifest(folder)
    if manifest is None or manifest.get("key") != receipt.key:
        what = "has no manifest" if manifest is None else "is not the one that the last run wrote"
        return Finding(passed=False, text=f"The output in {folder} {what}.", remedy=remedy)
    names = sorted(name for name in manifest["files"] if RECORDS.fullmatch(name))
    view = load_view(run)
    rendered = view.kind == "parquet" and any(name.endswith(".jsonl") for name in names)
    try:
        found = written(folder / name for name in names)
    except (OSError, InputError) as error:
        return Finding(passed=False, text=f"The output cannot be read: {error}.", remedy=remedy)
    planned = stored_as_json(run.store, view) if rendered else load_multiset(run)
    passed = found == planned
    return Finding(
        passed=passed,
        text=f"All {planned.records:,} accepted records are in the output, each as often as in the input "
        f"({f'{planned.bytes:,} bytes, ' if planned.bytes else ''}hash of the multiset {planned.hashes:032x})."
        if passed
        else f"The output does not hold the accepted records: {_difference(found, planned)}.",
        remedy=remedy,
        figures={
            "records": found.records,
            "bytes": found.bytes,
            "multiset_hash": f"{found.hashes:032x}",
            "planned_records": planned.records,
            "planned_bytes": planned.bytes,
            "planned_multiset_hash": f"{planned.hashes:032x}",
        },
    )


def _difference(found: Multiset, planned: Multiset) -> str:
    if found.records != planned.records:
        return f"{found.records:,} records, expected {planned.records:,}"
    if found.bytes != planned.bytes:
        return f"{found.bytes:,} bytes, expected {planned.bytes:,}"
    return (
        f"as many, but other ones (hash of the multiset {found.hashes:032x}, expected {planned.hashes:032x})"
    )
