//! CIFAR's files, folders of images, and augmentation that resumes.
#![cfg(feature = "images")]

use image::{GrayImage, ImageBuffer, Luma, Rgb, RgbImage};
use isograd_core::{Device, Error, Kind, Tensor};
use isograd_cpu as _;
use isograd_data::images::{
    ColorJitter, Cutout, ImageFolder, Images, Mixup, Normalize, RandomCrop, RandomHorizontalFlip, augment, cifar10,
    cifar100, image_files, read_image,
};
use isograd_data::{Context, Dataset, HostTensor, Loader};
use std::fs;
use std::path::Path;

fn sample(dataset: &impl Dataset<Item = (HostTensor, i64)>, index: usize) -> (Vec<usize>, Vec<u8>, i64) {
    let (image, label) = dataset.get(index, &Context::new(0, 0, index)).unwrap();
    (image.dims().to_vec(), image.to_vec().unwrap(), label)
}

#[track_caller]
fn assert_error(error: &Error, kind: Kind, path: &Path, expected: &str) {
    assert_eq!((error.kind(), error.op()), (kind, &*path.display().to_string()), "{error}");
    assert!(error.message().contains(expected), "{error} does not say {expected:?}");
}

const BATCHES: [&str; 6] = [
    "data_batch_1.bin",
    "data_batch_2.bin",
    "data_batch_3.bin",
    "data_batch_4.bin",
    "data_batch_5.bin",
    "test_batch.bin",
];

/// Records whose pixels are `10 * label + channel`.
fn records(labels: &[u8], before: &[u8]) -> Vec<u8> {
    let record = |&label: &u8| {
        let pixels = (0..3).flat_map(move |channel| [10 * label + channel; 32 * 32]);
        before.iter().copied().chain([label]).chain(pixels).collect::<Vec<u8>>()
    };
    labels.iter().flat_map(record).collect()
}

fn write_cifar10(dir: &Path) {
    for (i, name) in BATCHES.into_iter().enumerate() {
        fs::write(dir.join(name), records(&[i as u8, 9 - i as u8], &[])).unwrap();
    }
}

#[test]
fn cifar10_has_the_images_of_all_batches_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("cifar-10-batches-bin");
    fs::create_dir(&inner).unwrap();
    write_cifar10(&inner);
    for dir in [dir.path(), &inner] {
        let (train, test) = cifar10(dir).unwrap();
        assert_eq!((train.labels(), test.labels()), (&[0, 9, 1, 8, 2, 7, 3, 6, 4, 5][..], &[5, 4][..]));
        assert_eq!((train.name(), train.shape(), train.classes()), ("cifar10", [3, 32, 32], 10));
        let pixels = [[70; 1024], [71; 1024], [72; 1024]].concat();
        assert_eq!(sample(&train, 5), (vec![3, 32, 32], pixels, 7));
    }
}

#[test]
fn cifar100_has_the_fine_labels() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("train.bin"), records(&[3, 19], &[77])).unwrap();
    fs::write(dir.path().join("test.bin"), records(&[20], &[77])).unwrap();
    let (train, test) = cifar100(dir.path()).unwrap();
    assert_eq!((train.labels(), test.labels(), test.classes()), (&[3, 19][..], &[20][..], 100));
    assert_eq!(sample(&test, 0).1[1024..1026], [201, 201]);
}

#[test]
fn cifar_files_that_are_missing_or_damaged() {
    let dir = tempfile::tempdir().unwrap();
    write_cifar10(dir.path());
    for name in ["data_batch_3.bin", "test_batch.bin"] {
        let path = dir.path().join(name);
        let whole = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_error(&cifar10(dir.path()).unwrap_err(), Kind::Io, &path, "reading failed");
        for (bytes, expected) in [
            (vec![], "0 bytes are not a number of records of 3073 bytes each"),
            (whole[..6145].to_vec(), "6145 bytes are not a number of records"),
            (records(&[1, 10], &[]), "image 1 has label 10, expected one in 0..10"),
            (vec![0x1f, 0x8b, 8], "the gzip stream is corrupt"),
        ] {
            fs::write(&path, bytes).unwrap();
            assert_error(&cifar10(dir.path()).unwrap_err(), Kind::Format, &path, expected);
        }
        fs::write(&path, whole).unwrap();
    }
    cifar10(dir.path()).unwrap();
}

/// An image of one colour.
fn plain(color: [u8; 3], [rows, columns]: [u32; 2]) -> RgbImage {
    ImageBuffer::from_pixel(columns, rows, Rgb(color))
}

fn saved(image: &RgbImage, path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    image.save(path).unwrap();
}

#[test]
fn a_folder_has_classes_by_name_and_images_of_both_formats() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    saved(&plain([200, 100, 50], [4, 4]), &path("dogs/b.png"));
    saved(&plain([200, 100, 50], [4, 4]), &path("dogs/more/A.JPEG"));
    saved(&plain([10, 20, 30], [4, 4]), &path("cats/2.png"));
    // The content decides about the format.
    fs::rename(path("cats/2.png"), path("cats/2.jpg")).unwrap();
    let grey: GrayImage = ImageBuffer::from_pixel(4, 4, Luma([77]));
    grey.save(path("cats/1.png")).unwrap();
    fs::write(path("cats/notes.txt"), "not an image").unwrap();
    fs::write(path("cats/.hidden.png"), "not an image").unwrap();
    fs::write(path("readme.png"), "of no class").unwrap();
    fs::create_dir(path(".cache")).unwrap();
    let folder = ImageFolder::open(dir.path(), [4, 4]).unwrap();
    assert_eq!(folder.classes(), ["cats", "dogs"]);
    let expected = [("cats/1.png", 0), ("cats/2.jpg", 0), ("dogs/b.png", 1), ("dogs/more/A.JPEG", 1)];
    assert_eq!(folder.files(), expected.map(|(name, class)| (path(name), class)));
    let planes = |color: [u8; 3]| color.map(|value| [value; 16]).concat();
    assert_eq!(sample(&folder, 0), (vec![3, 4, 4], planes([77; 3]), 0));
    assert_eq!(sample(&folder, 1), (vec![3, 4, 4], planes([10, 20, 30]), 0));
    assert_eq!(sample(&folder, 2), (vec![3, 4, 4], planes([200, 100, 50]), 1));
    let (_, lossy, _) = sample(&folder, 3);
    assert!(lossy.iter().zip(planes([200, 100, 50])).all(|(a, b)| a.abs_diff(b) <= 3), "{lossy:?}");
    assert_eq!(folder.get(4, &Context::new(0, 0, 4)).unwrap_err().kind(), Kind::Index);
}

#[test]
fn images_are_scaled_and_cut_to_the_size() {
    let dir = tempfile::tempdir().unwrap();
    // Black at both ends, which are cut, and in the middle columns of 0, 100, 200 and 250.
    let columns = [9, 9, 9, 9, 0, 0, 100, 100, 200, 200, 250, 250, 9, 9, 9, 9];
    let wide = ImageBuffer::from_fn(16, 8, |x, y| Rgb([columns[x as usize], y as u8 / 2 * 20, 7]));
    saved(&wide, &dir.path().join("a/wide.png"));
    saved(&plain([1, 2, 3], [2, 2]), &dir.path().join("a/small.png"));
    let folder = ImageFolder::open(dir.path(), [4, 4]).unwrap();
    let (shape, small, _) = sample(&folder, 0);
    assert_eq!((shape, small), (vec![3, 4, 4], [[1; 16], [2; 16], [3; 16]].concat()));
    let (_, wide, _) = sample(&folder, 1);
    // Bilinear: 3/8 of each pixel of a window of two, and 1/8 of each neighbour, also of those that are cut.
    for (x, expected) in [14u8, 100, 194, 214].into_iter().enumerate() {
        assert!(wide[4 + x].abs_diff(expected) <= 1, "{wide:?}");
    }
    assert!(wide[..4].is_sorted() && (0..4).all(|y| wide[16 + 4 * y].abs_diff(20 * y as u8) <= 5), "{wide:?}");
    assert_eq!(wide[32..], [7; 16]);
    let tall = ImageFolder::open(dir.path(), [6, 2]).unwrap();
    assert_eq!(sample(&tall, 1).0, [3, 6, 2]);
}

/// The bytes of a JPEG file that says how it is turned.
fn turned(image: &RgbImage, orientation: u8) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    image.write_to(&mut bytes, image::ImageFormat::Jpeg).unwrap();
    let tiff = [&b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0"[..], &[orientation, 0, 0, 0, 0, 0, 0, 0]].concat();
    let length = (2 + 6 + tiff.len()) as u16;
    let (start, rest) = bytes.get_ref().split_at(2);
    [start, b"\xff\xe1", &length.to_be_bytes(), b"Exif\0\0", &tiff, rest].concat()
}

#[test]
fn pictures_are_turned_as_they_were_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jpg");
    // White at the left.
    let image = ImageBuffer::from_fn(32, 16, |x, _| Rgb([if x < 16 { 255 } else { 0 }; 3]));
    // The side at which it is white: left, right, right, left, top, top, bottom, bottom.
    for (orientation, [row, column]) in
        [[8, 0], [8, 15], [8, 15], [8, 0], [0, 8], [0, 8], [15, 8], [15, 8]].into_iter().enumerate()
    {
        fs::write(&path, turned(&image, orientation as u8 + 1)).unwrap();
        let read = read_image(&path, [16, 16]).unwrap().to_vec::<u8>().unwrap();
        let at = |row: usize, column: usize| read[16 * row + column];
        let found = (at(row, column) > 200, at(15 - row, 15 - column) < 50);
        assert_eq!(found, (true, true), "orientation {}", orientation + 1);
    }
    fs::write(&path, turned(&image, 6)).unwrap();
    assert_eq!(read_image(&path, [32, 16]).unwrap().dims(), [3, 32, 16]);
}

#[test]
fn folders_and_files_that_are_no_images() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let open = |name: &str| ImageFolder::open(path(name), [4, 4]);
    assert_error(&open("missing").unwrap_err(), Kind::Io, &path("missing"), "reading the folder failed");
    fs::create_dir_all(path("set/cats")).unwrap();
    assert_error(&open("set/cats").unwrap_err(), Kind::Format, &path("set/cats"), "expected one for each class");
    assert_error(&open("set").unwrap_err(), Kind::Format, &path("set/cats"), "no png or jpeg file");
    saved(&plain([1, 2, 3], [9, 9]), &path("set/cats/a.png"));
    let whole = fs::read(path("set/cats/a.png")).unwrap();
    for bytes in [&whole[..whole.len() / 2], b"text", b""] {
        fs::write(path("set/cats/a.png"), bytes).unwrap();
        let error = open("set").unwrap().get(0, &Context::new(0, 0, 0)).unwrap_err();
        assert_error(&error, Kind::Format, &path("set/cats/a.png"), "the image cannot be decoded");
    }
    let folder = open("set").unwrap();
    fs::remove_file(path("set/cats/a.png")).unwrap();
    assert_error(&folder.get(0, &Context::new(0, 0, 0)).unwrap_err(), Kind::Io, &path("set/cats/a.png"), "reading");
    assert_eq!(ImageFolder::open(path("set"), [4, 0]).unwrap_err().kind(), Kind::Attr);
}

fn batches(loader: &Loader<(Tensor, Tensor)>, epoch: u64, first: usize) -> Vec<[Vec<u8>; 2]> {
    let bytes = |batch: (Tensor, Tensor)| [batch.0, batch.1].map(|t| t.to_bytes().unwrap());
    loader.epoch_from(epoch, first).map(|batch| bytes(batch.unwrap())).collect()
}

#[test]
fn augmentation_resumes_with_the_same_bits_and_is_new_in_each_epoch() {
    let pixels = (0..12 * 3 * 8 * 8).map(|i| (i * 37 % 251) as u8).collect();
    let images = Images::new("some", pixels, [3, 8, 8], (0..12).map(|i| i % 4).collect(), 4).unwrap();
    let jitter = ColorJitter { brightness: 0.2, contrast: 0.2, saturation: 0.2 };
    let crop = RandomCrop { size: [8, 8], padding: 2 };
    let normalize = Normalize::new(&[0.5; 3], &[0.25; 3]).unwrap();
    let augmented = images.map(augment((jitter, crop, RandomHorizontalFlip::default(), normalize, Cutout { size: 3 })));
    let mixup = Mixup { alpha: 0.4, classes: 4 };
    let mixed = augmented.map(move |(x, y), context| mixup.draw(x, y, context));
    let loader = Loader::new(mixed, 5).unwrap().shuffle(9).to(&Device::cpu().unwrap());
    let whole = batches(&loader, 2, 0);
    assert_eq!(batches(&loader.clone().workers(3).unwrap(), 2, 1), whole[1..]);
    let in_order = loader.clone().sampler(isograd_data::sampler::Sequential);
    let [first, second] = [0, 1].map(|epoch| batches(&in_order, epoch, 0));
    assert!(first.iter().zip(&second).all(|(a, b)| a[0] != b[0] && a[1] != b[1]));
    assert_ne!(batches(&in_order.seed(10), 0, 0), first);
}

#[test]
#[cfg(unix)]
fn links_in_a_folder_are_followed_and_a_circle_of_them_is_an_error() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir_all(path("set/a/b")).unwrap();
    fs::create_dir_all(path("elsewhere")).unwrap();
    for name in ["set/a/b/2.png", "set/a/c.png", "set/a/.hidden.png", "elsewhere/1.JPG"] {
        fs::write(path(name), b"").unwrap();
    }
    symlink(path("elsewhere"), path("set/a/aa")).unwrap();
    symlink(path("elsewhere"), path("set/z")).unwrap();
    let folder = ImageFolder::open(path("set"), [4, 4]).unwrap();
    assert_eq!(folder.classes(), ["a", "z"]);
    let files = [("set/a/aa/1.JPG", 0), ("set/a/b/2.png", 0), ("set/a/c.png", 0), ("set/z/1.JPG", 1)];
    assert_eq!(folder.files(), files.map(|(name, class)| (path(name), class)));
    assert_eq!(image_files(path("set")).unwrap(), files.map(|(name, _)| path(name)));
    symlink(path("set"), path("set/a/b/up")).unwrap();
    let error = ImageFolder::open(path("set"), [4, 4]).unwrap_err();
    assert_eq!(error.kind(), Kind::Io);
    symlink(path("nowhere"), path("elsewhere/gone")).unwrap();
    assert_eq!(image_files(path("elsewhere")).unwrap_err().kind(), Kind::Io);
}
