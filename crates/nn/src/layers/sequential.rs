//! Layers in sequence, functions as layers, and the layers that only fit others together.

use crate::{Forward, Layer, Module, Recompute, Visitor, VisitorMut, called};
use isograd_core::{Error, Result, Tensor};
use std::sync::Arc;

/// Layers in sequence, named by their numbers.
///
/// ```
/// # use isograd_nn::{Init, Linear, Sequential};
/// # use isograd_core::{Result, Tensor};
/// # fn network(init: &Init) -> Result<Sequential> {
/// Ok(Sequential::new().push(Linear::new(64, 32, init)?).push(Tensor::relu).push(|x: &Tensor| x.mul_scalar(0.5)))
/// # }
/// ```
#[derive(Default, Module)]
#[module(details = self.text())]
pub struct Sequential {
    #[module(flatten)]
    layers: Vec<Box<dyn Layer>>,
    #[module(flatten)]
    recompute: Recompute,
}

impl Sequential {
    /// No layers: the identity.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    fn text(&self) -> String {
        self.layers.iter().map(|layer| format!("{layer:?}")).collect::<Vec<_>>().join(", ")
    }

    /// Appends a layer, or a function of a tensor.
    pub fn push<K>(mut self, layer: impl IntoLayer<K>) -> Sequential {
        self.layers.push(layer.into_layer());
        self
    }

    /// Inserts a layer, or a function of a tensor, before layer `index`, or at the end. The layers behind it are named by their new
    /// numbers. Errors: `Index` if `index` is greater than the number of layers.
    pub fn insert<K>(&mut self, index: usize, layer: impl IntoLayer<K>) -> Result<()> {
        if index > self.layers.len() {
            let message = format!("there is no place {index}, expected one in 0..={}", self.layers.len());
            return Err(Error::index("sequential", message));
        }
        self.layers.insert(index, layer.into_layer());
        Ok(())
    }

    /// Removes the last layer and returns it.
    pub fn pop(&mut self) -> Option<Box<dyn Layer>> {
        self.layers.pop()
    }

    /// Layer `index`.
    pub fn get(&self, index: usize) -> Option<&dyn Layer> {
        self.layers.get(index).map(|layer| &**layer)
    }

    /// The number of layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// True if there are no layers.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// The layers, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &dyn Layer> + ExactSizeIterator {
        self.layers.iter().map(|layer| &**layer)
    }
}

impl Forward for Sequential {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        // With the least memory, a stretch has as many layers as there are stretches.
        let length = self.layers.len().isqrt().max(1);
        let stretches = self.layers.chunks(if self.recompute.is_on() { length } else { self.layers.len().max(1) });
        called(self, &[x], || {
            stretches.into_iter().try_fold(x.clone(), |x, layers| {
                self.recompute
                    .run(layers, &[&x], |layers, x| layers.iter().try_fold(x[0].clone(), |x, layer| layer.forward(&x)))
            })
        })
    }
}

/// A layer, or a function `Fn(&Tensor) -> Result<Tensor>`, which is a layer without parameters. `K` is inferred: it tells the two apart.
pub trait IntoLayer<K> {
    /// The layer.
    fn into_layer(self) -> Box<dyn Layer>;
}

/// The kind of layers, for [`IntoLayer`].
pub struct ByLayer;

/// The kind of functions, for [`IntoLayer`].
pub struct ByFunction;

impl<L: Layer + 'static> IntoLayer<ByLayer> for L {
    fn into_layer(self) -> Box<dyn Layer> {
        Box::new(self)
    }
}

impl<F: Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static> IntoLayer<ByFunction> for F {
    fn into_layer(self) -> Box<dyn Layer> {
        Box::new(Function(Arc::new(self)))
    }
}

/// A function as a layer.
struct Function<F>(Arc<F>);

impl<F> Clone for Function<F> {
    fn clone(&self) -> Self {
        Function(self.0.clone())
    }
}

impl<F> Module for Function<F> {
    fn visit(&self, _: &mut Visitor<'_>) {}

    fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}

    fn type_name(&self) -> &'static str {
        std::any::type_name::<F>()
    }
}

impl<F: Fn(&Tensor) -> Result<Tensor>> Forward for Function<F> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || (self.0)(x))
    }
}

/// Its input: a layer where there is nothing to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity;

impl Module for Identity {
    fn visit(&self, _: &mut Visitor<'_>) {}

    fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}
}

impl Forward for Identity {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || Ok(x.clone()))
    }
}

/// [`Tensor::flatten`]: merges dimensions `start` to `end`, by default `[N, ..]` to `[N, product of the others]`.
#[derive(Clone, Copy, Debug)]
pub struct Flatten {
    /// The first merged dimension.
    pub start: isize,
    /// The last merged dimension.
    pub end: isize,
}

impl Default for Flatten {
    fn default() -> Self {
        Flatten { start: 1, end: -1 }
    }
}

impl Module for Flatten {
    fn visit(&self, _: &mut Visitor<'_>) {}

    fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}
}

impl Forward for Flatten {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || x.flatten(self.start, self.end))
    }
}
