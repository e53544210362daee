//! A folder of images, in which each class has a folder.

use crate::dataset::no_sample;
use crate::file::{self, invalid};
use crate::{Context, Dataset, HostTensor};
use image::imageops::FilterType;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageReader, Limits, RgbImage};
use isograd_core::{DType, Error, Result};
use isograd_files::MAX_PIXELS;
use std::ffi::OsStr;
use std::fs::{self, FileType};
use std::io::{self, Cursor};
use std::path::{Path, PathBuf};

/// The images of a folder that has a folder for each class, as `cats/1.png` and `dogs/b/2.jpg`. A sample is an image, u8 `[3, H, W]`, and
/// its class: the number of its folder's name in alphabetical order. Images are read when they are asked for, converted to red, green
/// and blue, turned as they were taken, scaled to fill the size, and cut at the longer side, equally at both ends.
///
/// Files whose names end in `png`, `jpg` or `jpeg` are images, also in folders of a class's folder; other files, and names that begin with
/// a dot, are not looked at. The content of a file decides which of the formats it has. A file that is no image is an error when it is
/// read.
#[derive(Clone, Debug)]
pub struct ImageFolder {
    name: String,
    classes: Vec<String>,
    /// The path and the class of each image.
    files: Vec<(PathBuf, i64)>,
    size: [usize; 2],
}

impl ImageFolder {
    /// Lists the images of the folder, class by class and by name. `size` has the rows and the columns of a sample.
    ///
    /// Errors: `Io` if a folder cannot be read; `Format` if there is no class, or a class has no image; `Attr` for a size of 0 or more
    /// than `u32` holds.
    pub fn open(dir: impl AsRef<Path>, size: [usize; 2]) -> Result<ImageFolder> {
        let dir = dir.as_ref();
        check_size("image_folder", size)?;
        let (mut classes, mut files) = (Vec::new(), Vec::new());
        for folder in entries(dir)?.into_iter().filter(|entry| entry.kind.is_dir()).map(|entry| entry.path) {
            let images = images(&folder)?;
            if images.is_empty() {
                return Err(invalid(&folder, "there is no png or jpeg file in this folder of a class"));
            }
            let class = classes.len() as i64;
            files.extend(images.into_iter().map(|image| (image, class)));
            classes.push(folder.file_name().unwrap_or_default().to_string_lossy().into_owned());
        }
        if classes.is_empty() {
            return Err(invalid(dir, "there is no folder in this folder, expected one for each class"));
        }
        Ok(ImageFolder { name: dir.display().to_string(), classes, files, size })
    }

    /// The names of the classes, in the order of their numbers.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The file and the class of each sample.
    pub fn files(&self) -> &[(PathBuf, i64)] {
        &self.files
    }

    /// Rows and columns of a sample.
    pub fn size(&self) -> [usize; 2] {
        self.size
    }
}

impl Dataset for ImageFolder {
    type Item = (HostTensor, i64);

    fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, index: usize, _: &Context) -> Result<(HostTensor, i64)> {
        let file = self.files.get(index).ok_or_else(|| no_sample(&self.name, index, self.files.len()))?;
        Ok((read_image(&file.0, self.size)?, file.1))
    }
}

/// The images of a folder and of the folders in it, by name; or the file itself. Which files are images: as of an [`ImageFolder`].
///
/// Errors: `Io` if there is no such file or a folder cannot be read; `Format` if there is no image.
pub fn image_files(path: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
    let path = path.as_ref();
    let about = fs::metadata(path).map_err(|e| file::failed(path, e))?;
    if !about.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let files = images(path)?;
    if files.is_empty() {
        return Err(invalid(path, "there is no png or jpeg file in this folder"));
    }
    Ok(files)
}

/// A file or a folder; a link is what it leads to.
struct Entry {
    path: PathBuf,
    kind: FileType,
}

/// The entries of a folder in the order of their names. Names that begin with a dot are left out.
fn entries(dir: &Path) -> Result<Vec<Entry>> {
    let failed = |path: &Path, e| Error::io(path, "reading the folder", e);
    let mut entries = Vec::new();
    for entry in fs::read_dir(dir).map_err(|e| failed(dir, e))? {
        let entry = entry.map_err(|e| failed(dir, e))?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        let kind = match entry.file_type() {
            Ok(kind) if kind.is_symlink() => fs::metadata(&path).map(|about| about.file_type()),
            kind => kind,
        };
        entries.push(Entry { kind: kind.map_err(|e| failed(&path, e))?, path });
    }
    entries.sort_unstable_by(|a, b| a.path.file_name().cmp(&b.path.file_name()));
    Ok(entries)
}

/// The images of a folder and of the folders in it, in the order of names.
fn images(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut images = Vec::new();
    collect_images(dir, &mut Vec::new(), &mut images)?;
    Ok(images)
}

/// Adds a folder's images. `above` has the folders that lead to it, without links.
fn collect_images(dir: &Path, above: &mut Vec<PathBuf>, images: &mut Vec<PathBuf>) -> Result<()> {
    let failed = |e| Error::io(dir, "reading the folder", e);
    let own = dir.canonicalize().map_err(failed)?;
    if above.contains(&own) {
        return Err(failed(io::Error::other(format!("a link leads back to {}, which it is in", own.display()))));
    }
    above.push(own);
    for Entry { path, kind } in entries(dir)? {
        if kind.is_dir() {
            collect_images(&path, above, images)?;
        } else if kind.is_file() && is_named_image(&path) {
            images.push(path);
        }
    }
    above.pop();
    Ok(())
}

fn is_named_image(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str).map(str::to_ascii_lowercase);
    matches!(extension.as_deref(), Some("png" | "jpg" | "jpeg"))
}

/// Errors: `Attr` for a size of 0 or more than `u32` holds.
fn check_size(op: &'static str, size: [usize; 2]) -> Result<()> {
    match size.iter().any(|&extent| extent == 0 || u32::try_from(extent).is_err()) {
        true => Err(Error::attr(op, format!("the size is {size:?}, expected at least one pixel"))),
        false => Ok(()),
    }
}

/// The image of a file, u8 `[3, rows, columns]`: turned as the file says that it was taken (EXIF), and scaled and cut as those of an
/// [`ImageFolder`]. Errors: `Io`; `Format` if it is no image, or has more than 100 million pixels; `Attr` for a size as of an [`ImageFolder`].
pub fn read_image(path: impl AsRef<Path>, size: [usize; 2]) -> Result<HostTensor> {
    let path = path.as_ref();
    check_size("read_image", size)?;
    let (image, orientation) = decoded(path)?;
    // A picture that lies on its side is turned when it is small.
    let lies = matches!(
        orientation,
        Orientation::Rotate90 | Orientation::Rotate270 | Orientation::Rotate90FlipH | Orientation::Rotate270FlipH
    );
    let [rows, columns] = size.map(|extent| extent as u32);
    let (columns, rows) = if lies { (rows, columns) } else { (columns, rows) };
    let is_sized = (image.width(), image.height()) == (columns, rows);
    // Bilinear, over as many pixels as become one.
    let mut image = match is_sized {
        true => image,
        false => middle(image, columns, rows).resize_to_fill(columns, rows, FilterType::Triangle),
    };
    image.apply_orientation(orientation);
    Ok(planes(&image.into_rgb8()))
}

/// The pixels of a file, and how they are turned to be looked at.
fn decoded(path: &Path) -> Result<(DynamicImage, Orientation)> {
    let bytes = isograd_files::read(path)?;
    let failed = |e| invalid(path, format!("the image cannot be decoded: {e}")).with_source(e);
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
    let decoder = reader.map_err(image::ImageError::from).and_then(ImageReader::into_decoder);
    let mut decoder = decoder.map_err(failed)?;
    let (columns, rows) = decoder.dimensions();
    if u64::from(columns) * u64::from(rows) > MAX_PIXELS {
        let message = format!("the image has {columns} x {rows} pixels, expected at most {MAX_PIXELS}");
        return Err(invalid(path, message));
    }
    Limits::default().reserve(decoder.total_bytes()).map_err(failed)?;
    let orientation = decoder.orientation().map_err(failed)?;
    let image = DynamicImage::from_decoder(decoder).map_err(failed)?;
    Ok((DynamicImage::from(image.into_rgb8()), orientation))
}

/// An image without most of what is cut after it is scaled to fill a size: a long one would become much larger than that. The rest is three times
/// as long as what is kept.
fn middle(image: DynamicImage, columns: u32, rows: u32) -> DynamicImage {
    let [width, height] = [image.width(), image.height()].map(f64::from);
    let scale = (f64::from(columns) / width).max(f64::from(rows) / height);
    let rest = |size: u32, whole: f64| (3.0 * (f64::from(size) / scale).ceil()).min(whole) as u32;
    let (columns, rows) = (rest(columns, width), rest(rows, height));
    match (columns, rows) == (image.width(), image.height()) {
        true => image,
        false => image.crop_imm((image.width() - columns) / 2, (image.height() - rows) / 2, columns, rows),
    }
}

/// `[H, W, 3]` as `[3, H, W]`.
fn planes(image: &RgbImage) -> HostTensor {
    let (columns, rows) = image.dimensions();
    let bytes = (0..3).flat_map(|channel| image.as_raw().iter().skip(channel).step_by(3)).copied().collect();
    HostTensor::from_bytes(bytes, [3, rows as usize, columns as usize], DType::U8)
}
