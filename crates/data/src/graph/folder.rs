//! A graph as a folder of files.

use crate::csv::{Records, finite, number, texts};
use crate::file::{self, invalid};
use crate::{HostTensor, npy};
use isograd_core::{DType, Result, f16};
use std::io::{BufRead, BufReader};
use std::path::Path;

const EDGES: &str = "edges.csv";
const LABELS: &str = "labels.csv";
const FEATURES: [&str; 2] = ["features.csv", "features.npy"];

/// A graph whose nodes have features, and some of them a class: the files `edges.csv`, `labels.csv`, and `features.csv` or `features.npy`
/// of a folder. Files may be gzipped. A first line that begins with a name is a header.
///
/// | file | a line, or a row |
/// |---|---|
/// | `edges.csv` | source, target: numbers of nodes, from 0 |
/// | `features.csv` | the features of a node, in the order of nodes |
/// | `features.npy` | the same, a matrix of numbers as NumPy saves it |
/// | `labels.csv` | class, split, in the order of nodes; or node, class, split |
///
/// The split is `train`, `valid` (or `val`) or `test`. It is empty for a node in none of these, whose class may be empty too.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphFolder {
    /// The source of each edge.
    pub src: Vec<i64>,
    /// The target of each edge.
    pub dst: Vec<i64>,
    /// Features of nodes, f32 `[N, F]`.
    pub features: HostTensor,
    /// The class of each node, or -1.
    pub labels: Vec<i64>,
    /// The number of classes: one more than the highest.
    pub classes: usize,
    /// Nodes to train with.
    pub train: Vec<usize>,
    /// Nodes to validate with.
    pub valid: Vec<usize>,
    /// Nodes to test with.
    pub test: Vec<usize>,
}

impl GraphFolder {
    /// Reads the files. Errors: `Io`; `Format`, with the line, for what does not fit, and for two files of features.
    pub fn open(folder: impl AsRef<Path>) -> Result<GraphFolder> {
        let folder = folder.as_ref();
        let features = match FEATURES.map(|name| folder.join(name)) {
            [csv, npy] if npy.exists() && csv.exists() => {
                return Err(invalid(folder, format!("{} and {}, expected one of them", FEATURES[0], FEATURES[1])));
            }
            [_, npy] if npy.exists() => read_npy(&npy)?,
            [csv, _] => read_features(&csv)?,
        };
        let nodes = features.dims()[0];
        let (src, dst) = read_edges(&folder.join(EDGES), nodes)?;
        let path = folder.join(LABELS);
        let lines = read_labels(&path, nodes)?;
        let mut labels = vec![-1; nodes];
        let [mut train, mut valid, mut test] = [const { Vec::new() }; 3];
        for (node, (label, split)) in lines.into_iter().enumerate() {
            labels[node] = label;
            match split {
                Some(Split::Train) => train.push(node),
                Some(Split::Valid) => valid.push(node),
                Some(Split::Test) => test.push(node),
                None => {}
            }
        }
        let classes = labels.iter().max().map_or(0, |&highest| (highest + 1) as usize);
        Ok(GraphFolder { src, dst, features, labels, classes, train, valid, test })
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.features.dims()[0]
    }
}

/// The use of a node.
#[derive(Clone, Copy)]
enum Split {
    Train,
    Valid,
    Test,
}

/// Calls a function with the cells of each line, as texts, and the number of the line. `names` are those of a header. Errors: `Format` for
/// a line that has another number of cells than the first.
fn each_line(
    path: &Path,
    mut take: impl FnMut(&[String], &[String], u64) -> std::result::Result<(), String>,
) -> Result<()> {
    let text = open(path)?;
    let mut records = Records::new(path, text, b',');
    let (mut names, mut columns) = (Vec::new(), None);
    while let Some(record) = records.next()? {
        let (line, cells) = (record.line, texts(&record));
        let is_first = columns.is_none();
        let expected = *columns.get_or_insert(cells.len());
        if cells.len() != expected {
            let message = format!("line {line} has {} columns, expected {expected} as in the first", cells.len());
            return Err(invalid(path, message));
        }
        if is_first && number(&cells[0]).is_none() && !cells[0].is_empty() {
            names = cells;
            continue;
        }
        take(&names, &cells, line).map_err(|message| invalid(path, format!("line {line}: {message}")))?;
    }
    Ok(())
}

fn open(path: &Path) -> Result<Box<dyn BufRead>> {
    file::content(BufReader::new(isograd_files::open(path)?)).map_err(|e| file::failed(path, e))
}

/// A whole number below `bound`.
fn below(cell: &str, what: &str, bound: usize) -> std::result::Result<usize, String> {
    let found = number(cell).filter(|v| v.fract() == 0.0 && *v >= 0.0 && *v < bound as f64);
    found.map(|v| v as usize).ok_or_else(|| format!("expected a {what} in 0..{bound}, got {cell:?}"))
}

fn read_edges(path: &Path, nodes: usize) -> Result<(Vec<i64>, Vec<i64>)> {
    let (mut src, mut dst) = (Vec::new(), Vec::new());
    each_line(path, |_, cells, _| {
        let [source, target] = cells else {
            return Err(format!("{} columns, expected source and target", cells.len()));
        };
        src.push(below(source, "node", nodes)? as i64);
        dst.push(below(target, "node", nodes)? as i64);
        Ok(())
    })?;
    Ok((src, dst))
}

fn read_features(path: &Path) -> Result<HostTensor> {
    let (mut rows, mut values) = (0, Vec::new());
    each_line(path, |_, cells, _| {
        rows += 1;
        for (column, cell) in cells.iter().enumerate() {
            let value = finite(cell);
            values.push(value.map_err(|what| format!("column {}: expected {what}, got {cell:?}", column + 1))?);
        }
        Ok(())
    })?;
    if rows == 0 {
        return Err(invalid(path, "the table has no nodes, expected at least one"));
    }
    let columns = values.len() / rows;
    HostTensor::new(&values, [rows, columns])
}

/// The class, or -1, and the use of each node.
fn read_labels(path: &Path, nodes: usize) -> Result<Vec<(i64, Option<Split>)>> {
    let (mut found, mut lines) = (vec![None; nodes], 0);
    let mut is_listed = true;
    each_line(path, |names, cells, _| {
        let places = columns_of(names, cells.len())?;
        is_listed = places.0.is_none();
        let node = match places.0 {
            Some(place) => below(&cells[place], "node", nodes)?,
            None if lines < nodes => lines,
            None => return Err(format!("there are {nodes} nodes with features, expected as many lines")),
        };
        lines += 1;
        let (label, split) = (&cells[places.1], &cells[places.2]);
        let split = match split.as_str() {
            "train" => Some(Split::Train),
            "valid" | "val" => Some(Split::Valid),
            "test" => Some(Split::Test),
            "" => None,
            _ => return Err(format!("expected the split train, valid, test or none, got {split:?}")),
        };
        let label = match label.is_empty() && split.is_none() {
            true => -1,
            false => below(label, "class", u32::MAX as usize)? as i64,
        };
        match found[node].replace((label, split)) {
            None => Ok(()),
            Some(_) => Err(format!("node {node} is listed twice")),
        }
    })?;
    if is_listed && lines < nodes {
        return Err(invalid(
            path,
            format!("the table has {lines} lines, expected {nodes}, one for each node with features"),
        ));
    }
    Ok(found.into_iter().map(|line| line.unwrap_or((-1, None))).collect())
}

/// The columns of the node, if there is one, of the class and of the split.
fn columns_of(names: &[String], columns: usize) -> std::result::Result<(Option<usize>, usize, usize), String> {
    if names.is_empty() {
        return match columns {
            2 => Ok((None, 0, 1)),
            3 => Ok((Some(0), 1, 2)),
            _ => Err(format!("{columns} columns, expected class and split, or node, class and split")),
        };
    }
    let place = |wanted: &[&str]| names.iter().position(|name| wanted.contains(&name.as_str()));
    let missing = |what: &str| format!("expected a column {what}, the table has {}", names.join(", "));
    let label = place(&["label", "class"]).ok_or_else(|| missing("label"))?;
    Ok((place(&["node", "id"]), label, place(&["split"]).ok_or_else(|| missing("split"))?))
}

/// The numbers of a matrix as f32.
fn read_npy(path: &Path) -> Result<HostTensor> {
    let array = npy::read(path)?;
    let (dtype, shape) = (array.dtype(), array.dims().to_vec());
    if shape.len() != 2 || shape[0] == 0 {
        return Err(invalid(path, format!("the array has shape {shape:?}, expected nodes and features")));
    }
    let values: Vec<f32> = match dtype {
        DType::F32 => array.to_vec()?,
        DType::F16 => array.to_vec::<f16>()?.into_iter().map(f16::to_f32).collect(),
        DType::F64 => array.to_vec::<f64>()?.into_iter().map(|v| v as f32).collect(),
        DType::I32 => array.to_vec::<i32>()?.into_iter().map(|v| v as f32).collect(),
        DType::I64 => array.to_vec::<i64>()?.into_iter().map(|v| v as f32).collect(),
        DType::Bool => array.to_vec::<bool>()?.into_iter().map(|v| f32::from(u8::from(v))).collect(),
        _ => array.to_vec::<u8>()?.into_iter().map(f32::from).collect(),
    };
    match values.iter().position(|v| !v.is_finite()) {
        None => HostTensor::new(&values, shape),
        Some(at) => Err(invalid(path, format!("element {at} is {}, expected a finite number", values[at]))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isograd_core::Kind;
    use std::fs;

    /// A folder with these files.
    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).unwrap());
        folder
    }

    /// An array of floats of 32 bits.
    fn array(shape: &str, values: &[f32]) -> Vec<u8> {
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n");
        let values: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), &values].concat()
    }

    const NODES: &str = "0.5,1\n2,3\n4,-5\n";

    #[test]
    fn a_folder_is_read_with_and_without_headers() {
        let plain =
            folder(&[("edges.csv", "0,1\n2,1\n"), ("features.csv", NODES), ("labels.csv", "1,train\n,\n0,test\n")]);
        let read = GraphFolder::open(plain.path()).unwrap();
        assert_eq!((&read.src[..], &read.dst[..], read.nodes(), read.classes), (&[0, 2][..], &[1, 1][..], 3, 2));
        assert_eq!(read.features.to_vec::<f32>().unwrap(), [0.5, 1.0, 2.0, 3.0, 4.0, -5.0]);
        assert_eq!((&read.labels[..], read.train, read.valid, read.test), (&[1, -1, 0][..], vec![0], vec![], vec![2]));
        let named = folder(&[
            ("edges.csv", "source,target\n0,1\n2,1\n"),
            ("features.csv", &format!("a,b\n{NODES}")),
            ("labels.csv", "split,label,node\nval,3,2\ntrain,0,1\n"),
        ]);
        let read = GraphFolder::open(named.path()).unwrap();
        assert_eq!((&read.labels[..], read.classes), (&[-1, 0, 3][..], 4));
        assert_eq!((read.train, read.valid, read.test), (vec![1], vec![2], vec![]));
    }

    #[test]
    fn features_may_be_an_array() {
        let (edges, labels) = (("edges.csv", ""), ("labels.csv", "0,train\n1,test\n1,\n"));
        for (bytes, expected) in [
            (array("(3, 2)", &[0.5, 1.0, 2.0, 3.0, 4.0, -5.0]), Ok(())),
            (array("(6,)", &[0.0; 6]), Err("the array has shape [6], expected nodes and features")),
            (array("(1, 1)", &[f32::NAN]), Err("element 0 is NaN, expected a finite number")),
            (b"no array".to_vec(), Err("the file is no array of NumPy")),
        ] {
            let all = folder(&[edges, labels]);
            fs::write(all.path().join("features.npy"), bytes).unwrap();
            match (GraphFolder::open(all.path()), expected) {
                (Ok(read), Ok(())) => {
                    assert_eq!(read.features.to_vec::<f32>().unwrap(), [0.5, 1.0, 2.0, 3.0, 4.0, -5.0]);
                    assert_eq!((read.nodes(), read.classes), (3, 2));
                }
                (found, Err(expected)) => {
                    let error = found.unwrap_err();
                    assert!(error.kind() == Kind::Format && error.to_string().contains(expected), "{error}");
                }
                (Err(error), _) => panic!("{error}"),
            }
        }
        let both = folder(&[edges, labels, ("features.csv", NODES), ("features.npy", "")]);
        let error = GraphFolder::open(both.path()).unwrap_err().to_string();
        assert!(error.contains("features.csv and features.npy, expected one of them"), "{error}");
    }

    #[test]
    fn files_that_do_not_fit_are_refused_with_file_and_line() {
        let good = [("edges.csv", "0,1\n"), ("features.csv", NODES), ("labels.csv", "0,train\n1,test\n,\n")];
        for (file, text, expected) in [
            ("edges.csv", "0,1\n1,3\n", "edges.csv: Format: line 2: expected a node in 0..3, got \"3\""),
            ("edges.csv", "0,1,0.5\n", "line 1: 3 columns, expected source and target"),
            ("edges.csv", "0,1\n1\n", "line 2 has 1 columns, expected 2 as in the first"),
            ("features.csv", "1,2\n3,x\n", "line 2: column 2: expected a finite number, got \"x\""),
            ("features.csv", "", "the table has no nodes"),
            ("labels.csv", "0,train\n1,test\n", "the table has 2 lines, expected 3"),
            ("labels.csv", "0,train\n1,test\n,\n,\n", "line 4: there are 3 nodes with features"),
            (
                "labels.csv",
                "0,train\n1,exam\n,\n",
                "line 2: expected the split train, valid, test or none, got \"exam\"",
            ),
            ("labels.csv", "0,train\n,test\n,\n", "line 2: expected a class in 0..4294967295, got \"\""),
            ("labels.csv", "0,1,train\n0,1,test\n", "line 2: node 0 is listed twice"),
            ("labels.csv", "label,part\n0,train\n", "line 2: expected a column split, the table has label, part"),
        ] {
            let files = good.map(|(name, right)| (name, if name == file { text } else { right }));
            let error = GraphFolder::open(folder(&files).path()).unwrap_err();
            assert_eq!(error.kind(), Kind::Format);
            assert!(error.to_string().contains(expected), "{error}");
        }
        assert_eq!(GraphFolder::open(folder(&good[1..]).path()).unwrap_err().kind(), Kind::Io);
    }
}
