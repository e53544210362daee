//! A folder of images, in which each class has a folder.

use crate::dataset::no_sample;
use crate::file::{self, invalid};
use crate::{Context, Dataset, HostTensor};
use image::imageops::FilterType;
use image::{DynamicImage, ImageReader, RgbImage};
use isograd_core::{DType, Error, Result};
use std::ffi::OsStr;
use std::io::{self, Cursor};
use std::path::{Path, PathBuf};
use walkdir::{DirEntry, WalkDir};

/// The images of a folder that has a folder for each class, as `cats/1.png` and `dogs/b/2.jpg`. A sample is an image, u8 `[3, H, W]`, and
/// its class: the number of its folder's name in alphabetical order. Images are read when they are asked for, converted to red, green
/// and blue, scaled to fill the size, and cut at the longer side, equally at both ends.
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
        if size.iter().any(|&extent| extent == 0 || u32::try_from(extent).is_err()) {
            return Err(Error::attr("image_folder", format!("the size is {size:?}, expected at least one pixel")));
        }
        let (mut classes, mut files) = (Vec::new(), Vec::new());
        for folder in entries(dir, 1)?.iter().filter(|entry| entry.file_type().is_dir()) {
            let images = entries(folder.path(), usize::MAX)?.into_iter().filter(is_image);
            let class = classes.len() as i64;
            let before = files.len();
            files.extend(images.map(|image| (image.into_path(), class)));
            if files.len() == before {
                return Err(invalid(folder.path(), "there is no png or jpeg file in this folder of a class"));
            }
            classes.push(folder.file_name().to_string_lossy().into_owned());
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
    let about = std::fs::metadata(path).map_err(|e| file::failed(path, e))?;
    if !about.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let images = entries(path, usize::MAX)?.into_iter().filter(is_image);
    let files: Vec<PathBuf> = images.map(DirEntry::into_path).collect();
    if files.is_empty() {
        return Err(invalid(path, "there is no png or jpeg file in this folder"));
    }
    Ok(files)
}

/// The entries of a folder, down to a depth, in the order of their names. Names that begin with a dot are left out.
fn entries(dir: &Path, depth: usize) -> Result<Vec<DirEntry>> {
    let is_shown = |entry: &DirEntry| !entry.file_name().as_encoded_bytes().starts_with(b".");
    let walk = WalkDir::new(dir).min_depth(1).max_depth(depth).follow_links(true).sort_by_file_name();
    let entries = walk.into_iter().filter_entry(is_shown).collect::<std::result::Result<Vec<_>, _>>();
    entries.map_err(|e| {
        let (path, message) = (e.path().unwrap_or(dir).to_path_buf(), e.to_string());
        // A link to a folder above it is no error of the system.
        Error::io(&path, "reading the folder", e.into_io_error().unwrap_or_else(|| io::Error::other(message)))
    })
}

fn is_image(entry: &DirEntry) -> bool {
    let extension = entry.path().extension().and_then(OsStr::to_str).map(str::to_ascii_lowercase);
    entry.file_type().is_file() && matches!(extension.as_deref(), Some("png" | "jpg" | "jpeg"))
}

/// The image of a file, u8 `[3, rows, columns]`: scaled and cut as those of an [`ImageFolder`]. Errors: `Io`; `Format` if it is no image.
pub fn read_image(path: impl AsRef<Path>, [rows, columns]: [usize; 2]) -> Result<HostTensor> {
    let path = path.as_ref();
    let bytes = file::read(path)?;
    let failed = |e| invalid(path, format!("the image cannot be decoded: {e}")).with_source(e);
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
    let image = reader.map_err(image::ImageError::from).and_then(ImageReader::decode).map_err(failed)?;
    let image = DynamicImage::from(image.into_rgb8());
    let is_sized = (image.width() as usize, image.height() as usize) == (columns, rows);
    // Bilinear, over as many pixels as become one.
    let image = if is_sized { image } else { image.resize_to_fill(columns as u32, rows as u32, FilterType::Triangle) };
    Ok(planes(&image.into_rgb8()))
}

/// `[H, W, 3]` as `[3, H, W]`.
fn planes(image: &RgbImage) -> HostTensor {
    let (columns, rows) = image.dimensions();
    let bytes = (0..3).flat_map(|channel| image.as_raw().iter().skip(channel).step_by(3)).copied().collect();
    HostTensor::from_bytes(bytes, [3, rows as usize, columns as usize], DType::U8)
}
