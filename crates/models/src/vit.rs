//! The vision transformer: Dosovitskiy et al. 2020, arXiv 2010.11929. Parameters have the names and shapes of Hugging Face's
//! `ViTForImageClassification`.

use crate::encoder::{Heads, STD, linear};
use crate::hub::{Config, Pretrained, text};
use crate::language::Stream;
use isograd_core::ops::{Activation, Approximate, Conv};
use isograd_core::{Error, Result, Tensor};
use isograd_nn::{Conv2d, Dropout, Forward, Init, Layer, LayerNorm, Module, Recompute, called, is_hooked};
use serde_json::{Map, Value, json};
use std::path::Path;

/// Extents of a [`Vit`], and the probability of its dropout.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct VitOptions {
    /// Height and width of an image, in pixels.
    pub image: usize,
    /// Height and width of a patch, which divide those of an image.
    pub patch: usize,
    /// Channels of an image.
    pub channels: usize,
    /// Outputs.
    pub classes: usize,
    /// The number of layers.
    pub layers: usize,
    /// Heads of an attention. They divide the width.
    pub heads: usize,
    /// E, the width of a position.
    pub width: usize,
    /// The width of the hidden layers.
    pub hidden: usize,
    /// The probability of dropout, of embeddings, of weights of the attention and after each part of a layer.
    pub dropout: f64,
    /// Added to variances.
    pub eps: f64,
}

impl Default for VitOptions {
    /// The options of [`VitOptions::base`].
    fn default() -> VitOptions {
        VitOptions::base()
    }
}

impl VitOptions {
    /// 12 layers of width 768, for images of 224 x 224 pixels in patches of 16 x 16, and 1000 classes: 86.6 million parameters, no dropout.
    pub fn base() -> VitOptions {
        VitOptions {
            image: 224,
            patch: 16,
            channels: 3,
            classes: 1000,
            layers: 12,
            heads: 12,
            width: 768,
            hidden: 3072,
            dropout: 0.0,
            eps: 1e-12,
        }
    }

    /// 12 layers of width 192: 5.7 million parameters.
    pub fn tiny() -> VitOptions {
        VitOptions { heads: 3, width: 192, hidden: 768, ..VitOptions::base() }
    }

    /// From `config.json` of a folder that `transformers` or [`save`](Pretrained::save) wrote; the dropout is its `hidden_dropout_prob`.
    /// Errors: `Io`; `Format` for another kind of network, and for options that a [`Vit`] does not have, such as another activation.
    pub fn read(folder: impl AsRef<Path>) -> Result<VitOptions> {
        let config = Config::read(folder.as_ref(), &["vit"])?;
        config.expect("hidden_act", "gelu")?;
        config.expect("qkv_bias", true)?;
        // Two classes are not written.
        let classes = config.part("id2label")?.map_or(2, |labels| labels.len());
        Ok(VitOptions {
            image: config.count("image_size")?,
            patch: config.count("patch_size")?,
            channels: config.count("num_channels")?,
            classes,
            layers: config.count("num_hidden_layers")?,
            heads: config.count("num_attention_heads")?,
            width: config.count("hidden_size")?,
            hidden: config.count("intermediate_size")?,
            dropout: config.float_or("hidden_dropout_prob", 0.0)?,
            eps: config.float_or("layer_norm_eps", 1e-12)?,
        })
    }

    fn config(&self) -> String {
        let labels: Map<String, Value> =
            (0..self.classes).map(|i| (i.to_string(), json!(format!("LABEL_{i}")))).collect();
        let numbers: Map<String, Value> = (0..self.classes).map(|i| (format!("LABEL_{i}"), json!(i))).collect();
        text(&json!({
            "architectures": ["ViTForImageClassification"],
            "model_type": "vit",
            "image_size": self.image,
            "patch_size": self.patch,
            "num_channels": self.channels,
            "id2label": labels,
            "label2id": numbers,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "hidden_size": self.width,
            "intermediate_size": self.hidden,
            "hidden_act": "gelu",
            "qkv_bias": true,
            "hidden_dropout_prob": self.dropout,
            "attention_probs_dropout_prob": self.dropout,
            "layer_norm_eps": self.eps,
        }))
    }

    fn norm(&self, init: &Init) -> Result<LayerNorm> {
        let mut norm = LayerNorm::new(self.width, init)?;
        norm.eps = self.eps;
        Ok(norm)
    }

    /// Patches of an image. Errors: `Attr` unless a patch divides an image.
    fn patches(&self) -> Result<usize> {
        if self.patch == 0 || !self.image.is_multiple_of(self.patch) {
            let message = format!("patches of {} pixels do not divide images of {}", self.patch, self.image);
            return Err(Error::attr("vit", message));
        }
        Ok((self.image / self.patch) * (self.image / self.patch))
    }
}

/// Attention and a hidden layer with gelu, each after a norm and added to the sum of the parts before.
#[derive(Debug, Module)]
pub struct Block {
    /// The norm before the attention.
    #[module(name = "layernorm_before")]
    pub norm_before: LayerNorm,
    /// The attention, without the projection of its result.
    #[module(name = "attention.attention")]
    pub attention: Heads,
    /// The projection of the attention's result: a [`Linear`](isograd_nn::Linear) at first.
    #[module(name = "attention.output.dense")]
    pub attention_output: Box<dyn Layer>,
    /// The norm before the hidden layer.
    #[module(name = "layernorm_after")]
    pub norm_after: LayerNorm,
    /// To the hidden layer.
    #[module(name = "intermediate.dense")]
    pub intermediate: Box<dyn Layer>,
    /// From the hidden layer.
    #[module(name = "output.dense")]
    pub output: Box<dyn Layer>,
    dropout: Dropout,
}

impl Block {
    fn new(options: &VitOptions, init: &Init) -> Result<Block> {
        let &VitOptions { heads, width, hidden, dropout, .. } = options;
        Ok(Block {
            norm_before: options.norm(init)?,
            attention: Heads::new("vit", width, heads, dropout, init)?,
            attention_output: linear(width, width, init)?,
            norm_after: options.norm(init)?,
            intermediate: linear(width, hidden, init)?,
            output: linear(hidden, width, init)?,
            dropout: Dropout::new(dropout, init),
        })
    }

    /// Adds both parts of the layer to the sum.
    fn add_to(&self, stream: &mut Stream) -> Result<()> {
        let attended = self.attention.forward(&stream.norm(&self.norm_before)?, None)?;
        stream.add(self.dropout.forward(&self.attention_output.forward(&attended)?)?);
        let gelu = Activation::Gelu(Approximate::None);
        let hidden = self.intermediate.forward_with(&stream.norm(&self.norm_after)?, gelu)?;
        stream.add(self.dropout.forward(&self.output.forward(&hidden)?)?);
        Ok(())
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || {
            let mut stream = Stream::new(x.clone());
            self.add_to(&mut stream)?;
            stream.sum()
        })
    }
}

/// A classifier of images `[N, channels, H, W]`: `[N, classes]`. A patch is a position, after a first one that stands for the whole image.
#[derive(Debug, Module)]
pub struct Vit {
    /// The first position, `[1, 1, E]`.
    #[module(name = "vit.embeddings.cls_token")]
    pub cls_token: Tensor,
    /// `[1, 1 + patches, E]`.
    #[module(name = "vit.embeddings.position_embeddings")]
    pub position_embeddings: Tensor,
    /// The projection of patches.
    #[module(name = "vit.embeddings.patch_embeddings.projection")]
    pub projection: Conv2d,
    dropout: Dropout,
    /// The layers.
    #[module(name = "vit.encoder.layer")]
    pub layers: Vec<Block>,
    /// The norm of the features.
    #[module(name = "vit.layernorm")]
    pub norm: LayerNorm,
    /// From the features of the first position, `[N, E]`, to classes: a [`Linear`](isograd_nn::Linear) at first.
    pub classifier: Box<dyn Layer>,
    recompute: Recompute,
    #[module(skip)]
    options: VitOptions,
}

impl Vit {
    /// With initial weights: normal, with a deviation of 0.02. Errors: `Attr` unless the heads divide the width, and a patch an image.
    pub fn new(options: &VitOptions, init: &Init) -> Result<Vit> {
        let VitOptions { patch, channels, width, .. } = *options;
        let positions = options.patches()? + 1;
        let conv = Conv { stride: [patch; 2], ..Conv::default() };
        Ok(Vit {
            cls_token: init.normal((1, 1, width), 0.0, STD)?,
            position_embeddings: init.normal((1, positions, width), 0.0, STD)?,
            projection: Conv2d::with_options(channels, width, [patch; 2], &conv, init)?,
            dropout: Dropout::new(options.dropout, init),
            layers: (0..options.layers).map(|_| Block::new(options, init)).collect::<Result<_>>()?,
            norm: options.norm(init)?,
            classifier: linear(width, options.classes, init)?,
            recompute: Recompute::default(),
            options: *options,
        })
    }

    /// The normalised features `[N, 1 + patches, E]` of images `[N, channels, H, W]`, the first of which stands for the whole image. Errors:
    /// `Shape`.
    pub fn features(&self, x: &Tensor) -> Result<Tensor> {
        let VitOptions { image, channels, width, .. } = self.options;
        let n = match x.dims() {
            &[n, c, h, w] if [c, h, w] == [channels, image, image] => n,
            _ => {
                let message = format!("x is {}, expected [N, {channels}, {image}, {image}]", x.shape());
                return Err(Error::shape("vit", message));
            }
        };
        let patches = self.projection.forward(x)?.flatten(2, -1)?.transpose(1, 2)?;
        let first = self.cls_token.cast(patches.dtype())?.broadcast_to((n, 1, width))?;
        let x = Tensor::concat(&[&first, &patches], 1)?.add(&self.position_embeddings.cast(patches.dtype())?)?;
        let x = self.dropout.forward(&x)?;
        if self.recompute.is_on() || is_hooked() {
            let block = |x: Tensor, block| self.recompute.run(block, &[&x], |block: &Block, x| block.forward(&x[0]));
            return self.norm.forward(&self.layers.iter().try_fold(x, block)?);
        }
        let mut stream = Stream::new(x);
        self.layers.iter().try_for_each(|block| block.add_to(&mut stream))?;
        stream.norm(&self.norm)
    }
}

impl Pretrained for Vit {
    type Options = VitOptions;

    fn options(&self) -> VitOptions {
        self.options
    }

    fn config(&self) -> String {
        self.options.config()
    }

    fn read(folder: &Path) -> Result<VitOptions> {
        VitOptions::read(folder)
    }

    fn begin(options: &VitOptions, init: &Init) -> Result<Vit> {
        Vit::new(options, init)
    }
}

impl Forward for Vit {
    /// Errors: as [`Vit::features`].
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || self.classifier.forward(&self.features(x)?.select(1, 0)?.contiguous()?))
    }
}
