"""Pure functions: arrays in, frozen results out. No file is opened; no dagster, ray or torch is imported.

Index spaces; indices are int64 and counted from 0 unless stated. A name says which space a number belongs to:

| name | what it numbers |
|---|---|
| `record`, `document` | rows of the corpus in input order; a document is a record with text |
| `item` | what one call orders: documents or packed sequences, in the order of its arguments |
| `place` | positions in an order; `order[place]` is the item there; `frozen` holds items |
| `sequence` | packed sequences, as they were packed |
| `piece` | runs of one document's tokens inside sequences |
| `token` | positions of tokens in a stream or a document |
| `value`, `code` | values of one trait, int32 in [0, J); `group` the trait of a column of counts, int32 |
| `cluster`, `label` | clusters of vectors, int32; labels are the values of group 0 in use |
| `epoch`, `shard`, `cell` | passes over the items, parts of the output (int16), parts of one order |
"""
