"""Side-by-side measurements against peers; results are kept as data, tables are made from them."""
