"""Export formats, one a file. A format is registered here."""

from dagster_divorder.write.exports.ds import DS
from dagster_divorder.write.exports.format import Format
from dagster_divorder.write.exports.litdata import LITDATA
from dagster_divorder.write.exports.mds import MDS
from dagster_divorder.write.exports.megatron import MEGATRON
from dagster_divorder.write.exports.olmo import OLMO
from dagster_divorder.write.exports.parquet import PARQUET

FORMATS: dict[str, Format] = {form.name: form for form in (PARQUET, MEGATRON, OLMO, DS, MDS, LITDATA)}
