"""Export formats, one a file. A format is registered here."""

from dagster_divorder.exports.ds import DS
from dagster_divorder.exports.format import Format
from dagster_divorder.exports.litdata import LITDATA
from dagster_divorder.exports.mds import MDS
from dagster_divorder.exports.megatron import MEGATRON
from dagster_divorder.exports.olmo import OLMO
from dagster_divorder.exports.parquet import PARQUET
from dagster_divorder.exports.text import TEXT

FORMATS: dict[str, Format] = {
    found.name: found for found in (PARQUET, MEGATRON, OLMO, DS, MDS, LITDATA, TEXT)
}
