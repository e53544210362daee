#!/usr/bin/env python3
"""Compares `isograd train csv`, with no option but --target, with scikit-learn's defaults on five tables that this script makes.

    cargo build --release -p isograd-cli
    pip install scikit-learn pandas
    python3 benches/tables.py [--isograd target/release/isograd] [--keep FOLDER] [--seeds 1]

Each table has a part to train on and a part to test with, which no program sees while it learns. isograd is trained by one command and predicts by
another; both read the files as they are. scikit-learn gets what pandas makes of them, with some help: the separators are named, columns of
texts and identifiers are dropped, dates are divided into parts, and for the MLP numbers are scaled, missing ones are imputed, categories are one-hot and
the target is scaled. Both models have their default settings. Classes are judged by the accuracy, numbers by the root of the mean square of
the errors, in the unit of the target.
"""

import argparse
import csv
import io
import math
import pathlib
import random
import subprocess
import tempfile
import warnings

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

WORDS = "bright quiet large new old garden view central sunny renovated lift balcony cellar loft corner".split()
NAMES = "Smith Brown Jones Miller Davis Wilson Moore Clark Hall Young King Wright Hill Green Baker".split()


def passengers(draw):
    """Like the Titanic's: names with commas in quotes, an identifier, and cabins and ages that are missing."""
    rows = []
    for i in range(1309):
        sex = draw.choices(["male", "female"], [0.64, 0.36])[0]
        rank = draw.choices([1, 2, 3], [0.24, 0.21, 0.55])[0]
        age = max(0.5, round(draw.gauss(38 - 4 * rank, 13), 1))
        siblings, parents = draw.choices([0, 1, 2, 3], [0.68, 0.23, 0.06, 0.03])[0], draw.choices([0, 1, 2], [0.76, 0.14, 0.1])[0]
        fare = round(math.exp(draw.gauss(5.2 - 0.95 * rank, 0.5)) * (1 + 0.4 * (siblings + parents)), 4)
        score = (2.6 if sex == "female" else -0.6) - 0.9 * (rank - 2) - 0.03 * (age - 30) - 0.35 * (siblings + parents)
        score += 1.5 if age < 12 else 0
        survived = int(draw.random() < 1 / (1 + math.exp(-score + 0.6)))
        title = {"male": "Mr.", "female": "Mrs."}[sex]
        name = f"{draw.choice(NAMES)}, {title} {draw.choice(NAMES)} \"{draw.choice(WORDS)}\" {i}"
        cabin = f"{draw.choice('ABCDE')}{draw.randrange(1, 130)}" if draw.random() < (0.8 if rank == 1 else 0.05) else ""
        port = "" if draw.random() < 0.003 else draw.choices("SCQ", [0.72, 0.19, 0.09])[0]
        shown = "" if draw.random() < 0.2 else age
        rows.append([i + 1, survived, rank, name, sex, shown, siblings, parents, f"{draw.choice('AP')}/5 {draw.randrange(10**6)}", fare, cabin, port])
    head = "PassengerId,Survived,Pclass,Name,Sex,Age,SibSp,Parch,Ticket,Fare,Cabin,Embarked".split(",")
    return head, rows


def houses(draw):
    """Prices of up to millions, dates of sale, districts, and descriptions."""
    districts = {f"district {i}": draw.gauss(0, 0.25) for i in range(25)}
    rows = []
    for i in range(2000):
        area = round(math.exp(draw.gauss(4.7, 0.4)), 1)
        rooms, built = max(1, round(area / 28 + draw.gauss(0, 0.7))), draw.randrange(1900, 2023)
        kind, district = draw.choices(["flat", "house", "villa"], [0.6, 0.33, 0.07])[0], draw.choice(list(districts))
        year, month, day = draw.randrange(2015, 2024), draw.randrange(1, 13), draw.randrange(1, 29)
        log = 7.6 + 0.95 * math.log(area) + districts[district] + {"flat": 0, "house": 0.15, "villa": 0.5}[kind]
        log += 0.05 * (year - 2015) + 0.03 * math.sin(month / 6 * math.pi) - 0.003 * abs(2010 - built) + draw.gauss(0, 0.1)
        text = f"A {draw.choice(WORDS)} {kind}, {draw.choice(WORDS)} and {draw.choice(WORDS)}. Via {draw.choice(NAMES)} {i}"
        rows.append([f"H{i:05}", f"{year}-{month:02}-{day:02}", area, rooms, kind, district, built, text, round(math.exp(log))])
    return "id,sold,area,rooms,kind,district,built,description,price".split(","), rows


def wines(draw):
    """Measurements with decimal commas between semicolons."""
    rows = []
    for _ in range(1600):
        acid, sugar, alcohol = draw.gauss(7, 1), math.exp(draw.gauss(0.9, 0.5)), draw.gauss(10.5, 1.1)
        sulphates, density = draw.gauss(0.65, 0.12), 0.99 + 0.0005 * draw.gauss(5, 2)
        kind = draw.choice(["red", "white", "rosé"])
        score = 80 + 2.2 * (alcohol - 10.5) - 1.1 * (acid - 7) ** 2 + 9 * math.tanh(4 * (sulphates - 0.6)) - 0.6 * abs(sugar - 2.5)
        score += {"red": 1, "white": 0, "rosé": -1}[kind] * (alcohol - 10) + draw.gauss(0, 1.0)
        numbers = [f"{v:.4f}".replace(".", ",") for v in (acid, sugar, alcohol, sulphates, density)]
        rows.append([*numbers, kind, f"{score:.2f}".replace(".", ",")])
    return "acid;sugar;alcohol;sulphates;density;kind;points".split(";"), rows


def customers(draw):
    """Customers who leave or stay: a mark of byte order, and lines that end as on Windows."""
    rows = []
    for i in range(3000):
        months, fee = draw.randrange(1, 73), round(draw.uniform(18, 118), 2)
        contract = draw.choices(["monthly", "one year", "two years"], [0.55, 0.21, 0.24])[0]
        net, paper = draw.choices(["fibre", "DSL", "no"], [0.44, 0.34, 0.22])[0], draw.choice(["Yes", "No"])
        day = f"{draw.randrange(1, 29):02}.{draw.randrange(1, 13):02}.{draw.randrange(2017, 2024)}"
        score = {"monthly": 0.9, "one year": -0.6, "two years": -1.9}[contract] - 0.035 * (months - 24)
        score += {"fibre": 0.9, "DSL": 0, "no": -0.9}[net] + 0.012 * (fee - 60) + (0.3 if paper == "Yes" else 0)
        leaves = "Yes" if draw.random() < 1 / (1 + math.exp(-1.4 * score + 0.9)) else "No"
        rows.append([f"{draw.randrange(10**4):04}-{i:05X}", months, contract, net, paper, fee, round(fee * months, 2), day, leaves])
    return "customerID,tenure,contract,internet,paperless,fee,total,since,churn".split(","), rows


def sales(draw):
    """A tenth of all cells is missing, and shops to test with are new."""
    shops = {f"shop {i}": draw.gauss(0, 12) for i in range(40)}
    rows = []
    for i in range(2500):
        shop = draw.choice(list(shops)[:34] if i < 2000 else list(shops))
        price, discount, warm = draw.uniform(2, 12), draw.choice([0, 0, 0, 10, 20, 30]), draw.gauss(15, 8)
        day = draw.choice(["Mon", "Tue", "Wed", "Thu", "Fri", "Sat"])
        sold = 120 + shops[shop] - 7 * price + 1.1 * discount + 0.9 * warm + (25 if day == "Sat" else 0)
        sold += 0.1 * discount * (12 - price) + draw.gauss(0, 6)
        row = [shop, round(price, 2), discount, round(warm, 1), day]
        row = ["" if draw.random() < 0.1 else cell for cell in row]
        rows.append([*row, round(sold, 1)])
    return "shop,price,discount,warm,day,sold".split(","), rows


# The table, its target, whether it has classes, the rows to test with, how it is written, and what scikit-learn is told.
TABLES = {
    "passengers": (passengers, "Survived", True, 418, {}, {"drop": ["PassengerId", "Name", "Ticket", "Cabin"]}),
    "houses": (houses, "price", False, 500, {}, {"drop": ["id", "description"], "dates": {"sold": "%Y-%m-%d"}}),
    "wines": (wines, "points", False, 400, {"delimiter": ";"}, {"sep": ";", "decimal": ","}),
    "customers": (customers, "churn", True, 750, {"bom": True, "end": "\r\n"}, {"drop": ["customerID"], "dates": {"since": "%d.%m.%Y"}}),
    "sales": (sales, "sold", False, 500, {}, {}),
}


def write(path, head, rows, delimiter=",", end="\n", bom=False):
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator=end).writerows([head, *rows])
    path.write_bytes(("\ufeff" if bom else "").encode() + text.getvalue().encode())


def isograd(command, folder, name, target, seed):
    train, test, out = folder / f"{name}.csv", folder / f"{name}-test.csv", folder / f"{name}-run-{seed}"
    options = [] if seed == 42 else ["--seed", str(seed)]
    subprocess.run([command, "train", "csv", train, "--target", target, "--out", out, "--overwrite", "--quiet", *options], check=True, stdout=subprocess.DEVNULL)
    said = subprocess.run([command, "predict", out, test], check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
    return pd.read_csv(io.StringIO(said), dtype=str, keep_default_na=False).iloc[:, 0]


def frames(folder, name, target, told):
    """What pandas makes of the files, with dates in parts and without columns of texts."""
    for path in (folder / f"{name}.csv", folder / f"{name}-test.csv"):
        frame = pd.read_csv(path, sep=told.get("sep", ","), decimal=told.get("decimal", ".")).drop(columns=told.get("drop", []))
        for column, form in told.get("dates", {}).items():
            date = pd.to_datetime(frame.pop(column), format=form)
            for part in ("year", "month", "day", "dayofweek"):
                frame[f"{column} {part}"] = getattr(date.dt, part)
        for column in frame.columns:
            if not pd.api.types.is_numeric_dtype(frame[column]) and column != target:
                frame[column] = frame[column].astype("object").where(frame[column].notna(), "none")
        yield frame.drop(columns=[target]), frame[target]


def peers(folder, name, target, has_classes, told, seed):
    (x, y), (test, _) = frames(folder, name, target, told)
    texts = [column for column in x.columns if not pd.api.types.is_numeric_dtype(x[column])]
    numbers = [column for column in x.columns if column not in texts]
    # Trees take categories as they are; names that were not there in training count as missing.
    kinds = {column: pd.CategoricalDtype(sorted(x[column].unique())) for column in texts}
    trees = (HistGradientBoostingClassifier if has_classes else HistGradientBoostingRegressor)(categorical_features="from_dtype", random_state=seed)
    trees.fit(x.astype(kinds), y)
    for column in texts:
        test[column] = test[column].where(test[column].isin(kinds[column].categories))
    prepared = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
            ("texts", OneHotEncoder(handle_unknown="ignore"), texts),
        ]
    )
    mlp = MLPClassifier(random_state=seed) if has_classes else TransformedTargetRegressor(MLPRegressor(random_state=seed), transformer=StandardScaler())
    mlp = make_pipeline(prepared, mlp).fit(x, y)
    return trees.predict(test.astype(kinds)), mlp.predict(test.fillna({column: "none" for column in texts}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isograd", default="target/release/isograd")
    parser.add_argument("--keep", type=pathlib.Path, help="write tables and runs to this folder")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each program, of which the mean is shown")
    options = parser.parse_args()
    # The MLP's default of 200 epochs is often not enough, and pandas announces changes.
    warnings.simplefilter("ignore")
    temporary = tempfile.TemporaryDirectory()
    folder = options.keep or pathlib.Path(temporary.name)
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{'table':12}{'measure':>10}{'isograd':>12}{'trees':>12}{'MLP':>12}  better than")
    wins = 0
    for name, (make, target, has_classes, count, written, told) in TABLES.items():
        head, rows = make(random.Random(7))
        write(folder / f"{name}.csv", head, rows[:-count], **written)
        write(folder / f"{name}-test.csv", head, rows[-count:], **written)
        _, (_, y) = frames(folder, name, target, told)
        found = []
        for seed in range(42, 42 + options.seeds):
            said = [isograd(options.isograd, folder, name, target, seed), *peers(folder, name, target, has_classes, told, seed)]
            if has_classes:
                found.append([float(np.mean([str(a) == str(b) for a, b in zip(s, y)])) for s in said])
            else:
                found.append([float(np.sqrt(np.mean((np.asarray(s, float) - y.to_numpy(float)) ** 2))) for s in said])
        own, trees, mlp = np.mean(found, axis=0)
        better = (lambda other: own > other) if has_classes else (lambda other: own < other)
        beaten = [what for what, other in (("trees", trees), ("MLP", mlp)) if better(other)]
        wins += bool(beaten)
        form = "12.4f" if has_classes or own < 100 else "12.0f"
        print(f"{name:12}{'accuracy' if has_classes else 'error':>10}{own:{form}}{trees:{form}}{mlp:{form}}  {', '.join(beaten) or '-'}", flush=True)
    print(f"better than one of them on {wins} of {len(TABLES)} tables")
    raise SystemExit(wins < 2)


if __name__ == "__main__":
    main()
