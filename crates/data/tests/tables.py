"""Write small tables as pyarrow writes them: Parquet, packed and not, and Arrow.

    python -m venv venv && venv/bin/pip install pyarrow
    venv/bin/python crates/data/tests/tables.py
"""

import pathlib

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

HERE = pathlib.Path(__file__).parent / "tables"


def main():
    HERE.mkdir(exist_ok=True)
    n = 3000
    table = pa.table({
        "length": pa.array([i / 4 for i in range(n)], pa.float64()),
        "count": pa.array([i % 7 for i in range(n)], pa.int32()),
        "open": pa.array([i % 2 == 0 for i in range(n)]),
        "kind": pa.array([["rose", "iris"][i % 2] for i in range(n)]),
    })
    coded = table.set_column(3, "kind", table["kind"].dictionary_encode())
    for packed in ["none", "snappy", "gzip", "lz4"]:
        pyarrow.parquet.write_table(table, HERE / f"{packed}.parquet", compression=packed)
    pyarrow.feather.write_feather(coded, HERE / "lz4.feather", compression="lz4")
    with pa.OSFile(str(HERE / "plain.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    absent = pa.table({"x": pa.array([1.0, None]), "y": pa.array([0, 1])})
    pyarrow.parquet.write_table(absent, HERE / "absent.parquet", compression="none")
    lists = pa.table({"x": pa.array([[1.0]]), "y": pa.array([0])})
    pyarrow.parquet.write_table(lists, HERE / "lists.parquet", compression="none")
    for file in sorted(HERE.iterdir()):
        print(file.name, file.stat().st_size)


if __name__ == "__main__":
    main()
