"""Export formats, one a file. A format is registered here."""

from dagster_divorder.write.exports.megatron import MEGATRON
from dagster_divorder.write.exports.parquet import PARQUET
from dagster_divorder.write.exports.raw import DS, OLMO
from dagster_divorder.write.exports.rows import Format
from dagster_divorder.write.exports.samples import LITDATA, MDS

FORMATS: dict[str, Format] = {form.name: form for form in (PARQUET, MEGATRON, OLMO, DS, MDS, LITDATA)}
