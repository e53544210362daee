//! Sums of products, described by an equation of letters.

use crate::check::{check_float, check_same};
use crate::ops::named;
use crate::{Dims, Error, MAX_RANK, Result, Shape, Tensor, autocast, no_autocast};

/// Capital and small letters.
const LETTERS: usize = 52;
/// A label is a letter, or a dimension that `...` stands for, counted from the right.
const LABELS: usize = LETTERS + MAX_RANK;
/// The order of up to this many operands is the best one; that of more is chosen greedily.
const FEW: usize = 6;

/// Labels as bits.
type Set = u64;
type Extents = [usize; LABELS];

/// # Einstein sums
impl Tensor {
    /// The sum of products that an equation describes, as in PyTorch: `"bij,bjk->bik"` is a batch of matrix products.
    ///
    /// Each operand has a letter for each of its dimensions, and `...` stands for any number of dimensions, which broadcast. Dimensions
    /// of one letter have one extent, or 1. A letter that an operand repeats takes its diagonal. Letters that are not in the output
    /// are summed. Without `->`, the output is `...` and then the letters that occur once, capitals first, in the order of the alphabet.
    /// Spaces have no meaning.
    ///
    /// Operands are multiplied two at a time. The order is the one with the fewest multiplications for up to six operands, and is
    /// chosen greedily for more. A step that sums is a product of matrices, or of batches of them; in 16 bits each step is rounded. Float
    /// dtypes. Errors: `Attr` for an equation that is not valid or has another number of operands; `Shape` if a rank or an extent does
    /// not fit, or if a result has more than 8 dimensions; `Dtype`.
    ///
    /// ```
    /// # use isograd_core::{Result, Tensor};
    /// /// `x[b, i] w[o, i, j] y[b, j]`, summed over i and j.
    /// fn bilinear(x: &Tensor, w: &Tensor, y: &Tensor) -> Result<Tensor> {
    ///     Tensor::einsum("bi,oij,bj->bo", &[x, w, y])
    /// }
    /// ```
    pub fn einsum(equation: &str, operands: &[&Tensor]) -> Result<Tensor> {
        let op = "einsum";
        let first =
            operands.first().ok_or_else(|| Error::attr(op, "the list is empty, expected at least one tensor"))?;
        if let Some(low) = autocast::low_each(operands)? {
            return no_autocast(|| Tensor::einsum(equation, &low.iter().collect::<Vec<_>>()));
        }
        check_same(op, operands)?;
        check_float(op, first)?;
        named(op, operands, || {
            let equation = Equation::new(equation, operands)?;
            equation.contract(operands)
        })
    }
}

/// A part of an equation.
#[derive(Clone, Copy, PartialEq)]
enum Symbol {
    Letter(usize),
    Ellipsis,
}

/// The labels of operands and output, and their extents.
struct Equation {
    inputs: Vec<Vec<usize>>,
    output: Vec<usize>,
    extents: Extents,
}

impl Equation {
    fn new(text: &str, operands: &[&Tensor]) -> Result<Equation> {
        let text: String = text.split_whitespace().collect();
        let (inputs, output) = text.split_once("->").map_or((&*text, None), |(inputs, output)| (inputs, Some(output)));
        let inputs: Vec<Vec<Symbol>> = inputs.split(',').map(symbols).collect::<Result<_>>()?;
        if inputs.len() != operands.len() {
            let message = format!("`{text}` has {} operands, and {} were given", inputs.len(), operands.len());
            return Err(Error::attr("einsum", message));
        }
        let inputs: Vec<Vec<usize>> =
            inputs.iter().zip(operands).map(|(symbols, x)| labels_of(symbols, x)).collect::<Result<_>>()?;
        let mut extents = [1; LABELS];
        for (labels, x) in inputs.iter().zip(operands) {
            fit(&mut extents, labels, x)?;
        }
        let output = match output {
            Some(output) => explicit(output, &inputs)?,
            None => implicit(&inputs),
        };
        Ok(Equation { inputs, output, extents })
    }

    fn contract(&self, operands: &[&Tensor]) -> Result<Tensor> {
        let terms = operands.iter().zip(&self.inputs).map(|(x, labels)| Term::new(x, labels, &self.extents));
        let mut terms: Vec<Option<Term>> = terms.map(|term| term.map(Some)).collect::<Result<_>>()?;
        let sets: Vec<Set> = terms.iter().flatten().map(|term| set(&term.labels)).collect();
        let output = set(&self.output);
        for (i, j) in path(&sets, output, &self.extents) {
            let [a, b] = [i, j].map(|k| terms[k].take().expect("each term is used once"));
            let others = terms.iter().flatten().fold(output, |others, term| others | set(&term.labels));
            terms.push(Some(a.times(b, others, &self.extents)?));
        }
        let last = terms.pop().flatten().expect("the last step has the result");
        last.sum_to(output)?.arranged(&self.output)
    }
}

/// The symbols of one operand, or of the output.
fn symbols(text: &str) -> Result<Vec<Symbol>> {
    let (mut found, mut rest) = (Vec::new(), text);
    while let Some(c) = rest.chars().next() {
        let (symbol, length) = match c {
            'A'..='Z' => (Symbol::Letter(c as usize - 'A' as usize), 1),
            'a'..='z' => (Symbol::Letter(c as usize - 'a' as usize + LETTERS / 2), 1),
            _ if rest.starts_with("...") && !found.contains(&Symbol::Ellipsis) => (Symbol::Ellipsis, 3),
            _ => {
                let message = format!("`{text}` has `{rest}`, expected letters and at most one `...`");
                return Err(Error::attr("einsum", message));
            }
        };
        found.push(symbol);
        rest = &rest[length..];
    }
    Ok(found)
}

/// The labels that `count` dimensions of `...` have, from left to right.
fn ellipsis(count: usize) -> impl Iterator<Item = usize> {
    (LETTERS..LETTERS + count).rev()
}

/// Symbols with `...` replaced by the labels of `count` dimensions.
fn resolved(symbols: &[Symbol], count: usize) -> Vec<usize> {
    let mut labels = Vec::new();
    for symbol in symbols {
        match *symbol {
            Symbol::Letter(label) => labels.push(label),
            Symbol::Ellipsis => labels.extend(ellipsis(count)),
        }
    }
    labels
}

/// The labels of an operand's dimensions.
fn labels_of(symbols: &[Symbol], x: &Tensor) -> Result<Vec<usize>> {
    let has_rest = symbols.contains(&Symbol::Ellipsis);
    let letters = symbols.len() - usize::from(has_rest);
    if x.rank() < letters || (x.rank() > letters && !has_rest) {
        let least = if has_rest { "at least " } else { "" };
        return Err(Error::shape("einsum", format!("{} has rank {}, expected {least}{letters}", x.shape(), x.rank())));
    }
    Ok(resolved(symbols, x.rank() - letters))
}

/// The number of dimensions that `...` stands for.
fn ellipsis_of(inputs: &[Vec<usize>]) -> usize {
    inputs.iter().flatten().map(|&label| (label + 1).saturating_sub(LETTERS)).max().unwrap_or(0)
}

/// The labels of an output that is given.
fn explicit(text: &str, inputs: &[Vec<usize>]) -> Result<Vec<usize>> {
    let symbols = symbols(text)?;
    let labels = resolved(&symbols, ellipsis_of(inputs));
    for (k, &label) in labels.iter().enumerate() {
        let wrong = |what: &str| Err(Error::attr("einsum", format!("`{}` of the output {what}", name(label))));
        if labels[..k].contains(&label) {
            return wrong("is there twice");
        }
        if !inputs.iter().any(|labels| labels.contains(&label)) {
            return wrong("is in no operand");
        }
    }
    Ok(labels)
}

/// The labels of an output that is not given.
fn implicit(inputs: &[Vec<usize>]) -> Vec<usize> {
    let count = |label: usize| inputs.iter().flatten().filter(|&&other| other == label).count();
    ellipsis(ellipsis_of(inputs)).chain((0..LETTERS).filter(|&label| count(label) == 1)).collect()
}

fn name(label: usize) -> String {
    let letter = |from: u8, at: usize| char::from(from + at as u8).to_string();
    match label {
        _ if label < LETTERS / 2 => letter(b'A', label),
        _ if label < LETTERS => letter(b'a', label - LETTERS / 2),
        _ => "...".into(),
    }
}

/// Adds an operand's extents to those of the labels, which must agree or be 1.
fn fit(extents: &mut Extents, labels: &[usize], x: &Tensor) -> Result<()> {
    for (k, (&label, &extent)) in labels.iter().zip(x.dims()).enumerate() {
        let known = &mut extents[label];
        let repeated = labels[..k].iter().position(|&other| other == label);
        if (*known != extent && *known != 1 && extent != 1) || repeated.is_some_and(|at| x.dims()[at] != extent) {
            let other = repeated.map_or(*known, |at| x.dims()[at]);
            return Err(Error::shape("einsum", format!("`{}` is both {other} and {extent}", name(label))));
        }
        if *known == 1 {
            *known = extent;
        }
    }
    Ok(())
}

fn set(labels: &[usize]) -> Set {
    labels.iter().fold(0, |set, label| set | 1 << label)
}

fn has(set: Set, label: usize) -> bool {
    set & (1 << label) != 0
}

/// An operand or a product of operands. Its labels are distinct.
struct Term {
    x: Tensor,
    labels: Vec<usize>,
}

impl Term {
    /// An operand: the diagonal where a label is repeated, without the dimensions that broadcast.
    fn new(x: &Tensor, labels: &[usize], extents: &Extents) -> Result<Term> {
        let (mut x, mut labels) = (x.clone(), labels.to_vec());
        let twice = |labels: &[usize]| {
            let index_of = |j: usize| labels[..j].iter().position(|label| *label == labels[j]);
            (0..labels.len()).find_map(|j| Some((index_of(j)?, j)))
        };
        while let Some((i, j)) = twice(&labels) {
            let others = (0..labels.len()).filter(|&k| k != i && k != j);
            let order: Vec<usize> = others.chain([i, j]).collect();
            x = permuted(&x, &order)?.diagonal(0)?;
            labels = order[..order.len() - 1].iter().map(|&k| labels[k]).collect();
        }
        let is_kept = |k: &usize| x.dims()[*k] == extents[labels[*k]];
        let kept: Vec<usize> = (0..labels.len()).filter(is_kept).collect();
        let x = x.reshape(kept.iter().map(|&k| x.dims()[k]).collect::<Vec<_>>())?;
        Ok(Term { x, labels: kept.iter().map(|&k| labels[k]).collect() })
    }

    /// The sum over all labels that are not in `kept`.
    fn sum_to(self, kept: Set) -> Result<Term> {
        let dims: Vec<isize> =
            (0..self.labels.len()).filter(|&k| !has(kept, self.labels[k])).map(|k| k as isize).collect();
        if dims.is_empty() {
            return Ok(self);
        }
        Ok(Term { x: self.x.sum(dims)?, labels: self.labels.into_iter().filter(|&label| has(kept, label)).collect() })
    }

    /// The dimensions in the order of these labels. A label that is not there has the extent 1.
    fn arranged(&self, labels: &[usize]) -> Result<Tensor> {
        let index_of = |label: &usize| self.labels.iter().position(|other| other == label);
        let order: Vec<usize> = labels.iter().filter_map(index_of).collect();
        let dims: Vec<usize> = labels.iter().map(|label| index_of(label).map_or(1, |k| self.x.dims()[k])).collect();
        permuted(&self.x, &order)?.reshape(dims)
    }

    /// The product of two terms, summed over the labels that are not in `others`.
    fn times(self, b: Term, others: Set, extents: &Extents) -> Result<Term> {
        let (in_a, in_b) = (set(&self.labels), set(&b.labels));
        let (a, b) = (self.sum_to(others | in_b)?, b.sum_to(others | in_a)?);
        let of = |labels: &[usize], is_in: Set| -> Vec<usize> {
            labels.iter().copied().filter(|&label| has(is_in, label)).collect()
        };
        let (batch, summed) = (of(&a.labels, in_b & others), of(&a.labels, in_b & !others));
        let (rows, columns) = (of(&a.labels, !in_b), of(&b.labels, !in_a));
        let labels = [&*batch, &rows, &columns].concat();
        let dims = |labels: &[usize]| labels.iter().map(|&label| extents[label]).collect::<Dims>();
        let shape = Shape::from(dims(&labels));
        shape.check("einsum")?;
        if summed.is_empty() {
            return Ok(Term { x: a.arranged(&labels)?.mul(&b.arranged(&labels)?)?, labels });
        }
        let matrices = |term: &Term, left: &[usize], right: &[usize]| {
            let leading = if batch.is_empty() { vec![] } else { vec![dims(&batch).iter().product()] };
            let sides = [left, right].map(|labels| dims(labels).iter().product());
            term.arranged(&[&*batch, left, right].concat())?.reshape([leading, sides.to_vec()].concat())
        };
        let y = matrices(&a, &rows, &summed)?.matmul(&matrices(&b, &summed, &columns)?)?;
        Ok(Term { x: y.reshape(shape)?, labels })
    }
}

/// [`Tensor::permute`], without a node for the order that is there.
fn permuted(x: &Tensor, order: &[usize]) -> Result<Tensor> {
    if order.is_sorted() {
        return Ok(x.clone());
    }
    x.permute(&order.iter().map(|&k| k as isize).collect::<Vec<_>>())
}

/// The pairs of terms that are multiplied, one after the other. Operands are the first terms, each product is the next one.
fn path(operands: &[Set], output: Set, extents: &Extents) -> Vec<(usize, usize)> {
    if operands.len() <= FEW { best(operands, output, extents) } else { greedy(operands, output, extents) }
}

/// The number of elements of a tensor with these labels.
fn size(labels: Set, extents: &Extents) -> f64 {
    (0..LABELS).filter(|&label| has(labels, label)).map(|label| extents[label] as f64).product()
}

/// The path with the fewest multiplications: dynamic programming over sets of operands.
fn best(operands: &[Set], output: Set, extents: &Extents) -> Vec<(usize, usize)> {
    let all = (1usize << operands.len()) - 1;
    let is_in = |operand: usize, chosen: usize| chosen & (1 << operand) != 0;
    let union =
        |chosen: usize| (0..operands.len()).filter(|&k| is_in(k, chosen)).fold(0, |labels, k| labels | operands[k]);
    // The labels of the product of the chosen operands.
    let labels: Vec<Set> = (0..=all).map(|chosen| union(chosen) & (output | union(all & !chosen))).collect();
    // The cost of each product, and the operands of its first factor.
    let mut found = vec![(0.0, 0); all + 1];
    for chosen in (1..=all).filter(|chosen| !chosen.is_power_of_two()) {
        let first = chosen & chosen.wrapping_neg();
        found[chosen] = (f64::INFINITY, first);
        let is_too_long = labels[chosen].count_ones() as usize > MAX_RANK;
        for part in (1..chosen).filter(|part| part & !chosen == 0 && part & first != 0 && !is_too_long) {
            let other = chosen & !part;
            let cost = found[part].0 + found[other].0 + size(labels[part] | labels[other], extents);
            if cost < found[chosen].0 {
                found[chosen] = (cost, part);
            }
        }
    }
    let mut pairs = Vec::new();
    fn steps(chosen: usize, found: &[(f64, usize)], pairs: &mut Vec<(usize, usize)>, operands: usize) -> usize {
        if chosen.is_power_of_two() {
            return chosen.trailing_zeros() as usize;
        }
        let part = found[chosen].1;
        let pair = (steps(part, found, pairs, operands), steps(chosen & !part, found, pairs, operands));
        pairs.push(pair);
        operands + pairs.len() - 1
    }
    steps(all, &found, &mut pairs, operands.len());
    pairs
}

/// The next product is always the one that adds the fewest elements to what is kept; of several the cheapest.
fn greedy(operands: &[Set], output: Set, extents: &Extents) -> Vec<(usize, usize)> {
    let mut terms: Vec<(usize, Set)> = operands.iter().copied().enumerate().collect();
    let mut pairs = Vec::new();
    while terms.len() > 1 {
        let mut least: Option<((f64, f64), usize, usize, Set)> = None;
        for j in 1..terms.len() {
            for i in 0..j {
                let others = terms.iter().enumerate().filter(|(k, _)| *k != i && *k != j);
                let kept = others.fold(output, |kept, (_, term)| kept | term.1);
                let (a, b) = (terms[i].1, terms[j].1);
                let labels = (a | b) & kept;
                let growth = size(labels, extents) - size(a, extents) - size(b, extents);
                let is_too_long = labels.count_ones() as usize > MAX_RANK;
                let cost = (if is_too_long { f64::INFINITY } else { growth }, size(a | b, extents));
                if least.is_none_or(|(other, ..)| cost < other) {
                    least = Some((cost, i, j, labels));
                }
            }
        }
        let (_, i, j, labels) = least.expect("there are two terms");
        pairs.push((terms[i].0, terms[j].0));
        terms.remove(j);
        terms.remove(i);
        terms.push((operands.len() + pairs.len() - 1, labels));
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Labels 0, 1, .. of these extents.
    fn extents(given: &[usize]) -> Extents {
        let mut extents = [1; LABELS];
        extents[..given.len()].copy_from_slice(given);
        extents
    }

    #[test]
    fn a_chain_of_matrices_begins_at_its_thin_end() {
        // [1000, 2] [2, 1000] [1000, 3]: the second product is small.
        let (operands, extents) = ([0b0011, 0b0110, 0b1100], extents(&[1000, 2, 1000, 3]));
        assert_eq!(best(&operands, 0b1001, &extents), [(1, 2), (0, 3)]);
        assert_eq!(greedy(&operands, 0b1001, &extents), [(1, 2), (0, 3)]);
    }

    #[test]
    fn the_best_path_of_four_may_have_two_branches() {
        // [9, 9] [9, 1] [1, 9] [9, 9].
        let (operands, extents) = ([0b00011, 0b00110, 0b01100, 0b11000], extents(&[9, 9, 1, 9, 9]));
        assert_eq!(best(&operands, 0b10001, &extents), [(0, 1), (2, 3), (4, 5)]);
    }

    #[test]
    fn a_product_of_more_dimensions_than_a_tensor_has_is_avoided() {
        // The first two operands share no label, and have 10; each shares 4 of its labels with the third.
        let (operands, output) = ([0b00_0001_1111, 0b11_1110_0000, 0b01_1110_1111], 0b10_0001_0000);
        assert_ne!(best(&operands, output, &extents(&[2; 10]))[0], (0, 1));
        assert_ne!(greedy(&operands, output, &extents(&[2; 10]))[0], (0, 1));
    }
}
