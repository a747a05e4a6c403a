"""Export formats, one a file. A format is registered here."""

from dagster_divorder.exports.format import Format
from dagster_divorder.exports.litdata import LITDATA
from dagster_divorder.exports.mds import MDS
from dagster_divorder.exports.parquet import PARQUET

FORMATS: dict[str, Format] = {found.name: found for found in (PARQUET, MDS, LITDATA)}
