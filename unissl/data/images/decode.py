"""Decode an image of any kind to a small square uint8 array, for folders, parquet files and `predict` alike.

The rules for all sources:

- the first frame of an animation, turned upright by its EXIF orientation;
- transparent pixels become white, as on paper: logos and scans are mostly dark;
- JPEG, PNG, WebP, GIF, BMP and TIFF are decoded, and HEIC where pillow-heif is installed; no other format that Pillow
  knows: its readers of rare ones (FITS, icons in icons) allocate whatever a file tells them to;
- 16-bit grey is scaled to 8 bits (65535 becomes 255), never cut off; float images are read as 0..1 if they stay
  below 1, otherwise as 0..255;
- the shorter side is scaled to ``size`` (bilinear) and the centre cropped to a square, unless a data set has its
  own rule (:mod:`unissl.data.images.resize`);
- colours of an RGB image with a profile (phones, cameras) become sRGB; grey and CMYK profiles are not applied;
- an image beyond the bounds below, or that would take too much memory (:mod:`unissl.data.images.bounds`), is rejected
  before it is decoded; large ones are decoded one at a time, so that memory does not grow with the number of cores.
"""

from __future__ import annotations

import io
import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, lru_cache
from threading import Lock
from typing import IO, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageCms, UnidentifiedImageError

from unissl.data.images.bounds import bytes_to_decode, bytes_to_turn, coefficient_bytes, scanned_pixels
from unissl.data.images.issues import (
    LARGE_PIXELS,
    NONE,
    ImageIssue,
    has_frames,
    header_issues,
    is_blank,
    is_transparent,
)
from unissl.data.images.resize import CENTER_CROP, Resize
from unissl.types import Pixels
from unissl.utils.bounded_io import open_file
from unissl.utils.cpu import cpu_count
from unissl.utils.daemon_pool import DaemonPool

Encoded = str | bytes | Image.Image
"""A path, the bytes of an image file, or an image that is open already."""

MAX_PIXELS = 100_000_000
MAX_DEEP_PIXELS = 25_000_000
"""Pixels of an image with 32 bits per channel."""
MAX_SIDE = 65_535
"""Pixels in one direction, as in JPEG: Pillow has a pointer for each row, so 1 x 100,000,000 pixels took 2 GB."""
MAX_FILE_BYTES = 1 << 30
MAX_SCANS = 100
"""Scans of a JPEG, each of which is a pass over all pixels; cameras and programs write at most a dozen."""
MAX_SCANNED_PIXELS = 3_000_000_000
"""Pixels of a JPEG times its scans: 100 megapixels in 30 scans take two seconds."""
MAX_DECODED_BYTES = 590_000_000
"""Memory for an image: 100 megapixels of RGB in PNG, 73 with transparency, 36 in WebP."""
MAX_PROFILE_BYTES = 4 << 20
BAND_PIXELS = 1 << 20
"""Pixels that are converted at a time, where a conversion needs several times the memory of the image."""
PER_TASK = 32
MARGIN = 3
"""JPEG may be decoded at a coarser scale as long as this many pixels are left for each final one."""
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
SNIFFED_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "WEBP")
"""Formats that the first bytes of a file identify reliably."""
OTHER_FORMATS = (
    *(b"P%d" % kind for kind in range(1, 8)),
    *(b"SIMPLE  =", b"\0\0\1\0", b"\0\0\2\0", b"\0\0\0\x0cjP  ", b"\xffO\xffQ", b"8BPS", b"icns", b"DDS ", b"qoif"),
)
"""First bytes of formats that Pillow knows and that are not decoded, to say so: PPM, FITS, icons, JPEG 2000, PSD."""
RAW_SUFFIXES = {".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".pef", ".raf", ".raw", ".rw2", ".srw"}
IMAGE_SUFFIXES = RAW_SUFFIXES | {
    ".apng", ".avif", ".avifs", ".blp", ".bmp", ".bw", ".cur", ".dcx", ".dds", ".dib", ".gif", ".heic", ".heif", ".hif",
    ".icb", ".icns", ".ico", ".im", ".j2c", ".j2k", ".jfif", ".jp2", ".jpc", ".jpe", ".jpeg", ".jpf", ".jpg", ".jpx",
    ".mpo", ".msp", ".pbm", ".pcd", ".pcx", ".pfm", ".pgm", ".png", ".pnm", ".ppm", ".psd", ".pxr", ".qoi", ".ras",
    ".rgb", ".rgba", ".sgi", ".svg", ".tga", ".tif", ".tiff", ".vda", ".vst", ".webp", ".xbm", ".xpm",
}  # fmt: skip
"""A file with another suffix counts as an image if its first bytes do (:func:`looks_like_image`)."""
TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> transpose that makes the image upright."""
HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}

_one_large_image = Lock()


class Unreadable(Exception):
    """Why an image cannot be used, in a few words."""


class DecodedImage(NamedTuple):
    """A decoded image and the issues of its file."""

    pixels: Pixels
    issues: ImageIssue


def decode(source: Encoded, size: int, channels: int, fit: Resize = CENTER_CROP) -> Pixels:
    """The image as (size, size, channels), or wider where ``fit`` is; 1 channel is its luminance, 3 are RGB."""
    return read_image(source, size, channels, fit).pixels


def read_image(source: Encoded, size: int, channels: int, fit: Resize = CENTER_CROP) -> DecodedImage:
    """Like :func:`decode`, with the issues of the file."""
    try:
        with _open(source) as image:
            issues = header_issues(image, source if isinstance(source, str) else None, size)
            coefficients, announced = coefficient_bytes(image), image.size
            if fit.coarse and min(image.size) >= 2 * MARGIN * size:
                image.draft(image.mode, (MARGIN * size, MARGIN * size))
            _require_memory(coefficients + bytes_to_decode(image), announced)
            with _one_large_image if image.width * image.height > LARGE_PIXELS else nullcontext():
                upright, turned = _upright(image)
                issues |= turned | (ImageIssue.TRANSPARENT if is_transparent(upright) else NONE)
                flat = _flatten(upright)
                transform = _transform(image) if flat.mode == "RGB" else None
                grey = channels == 1 and transform is None
                square = fit(_as_mode(flat, "L" if grey else "RGB"), size)
            if transform is not None:
                square = ImageCms.applyTransform(square, transform) or square
            pixels = np.asarray(square.convert("L" if channels == 1 else "RGB")).reshape(size, square.width, channels)
            if is_blank(pixels):
                issues |= ImageIssue.BLANK
            return DecodedImage(pixels, issues | (ImageIssue.FRAMES if has_frames(image) else NONE))
    except Unreadable:
        raise
    except Exception as error:  # Pillow's readers raise nearly every type there is on damaged files
        raise _damaged(error) from error


def image_size(source: Encoded) -> tuple[int, int]:
    """Width and height from the header, before EXIF orientation."""
    with warnings.catch_warnings(action="ignore"), _open(source) as image:
        return image.size


def looks_like_image(path: str) -> bool:
    """Whether the first bytes are those of a common image format, for files without an image suffix."""
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(path, formats=SNIFFED_FORMATS):
            return True
    except Image.DecompressionBombError:
        return True
    except Exception:  # see decode
        return False


def decode_stream(
    items: Iterable[tuple[int, Encoded]], size: int, channels: int, fit: Resize = CENTER_CROP
) -> Iterator[tuple[int, DecodedImage | Unreadable]]:
    """Decode ``(row, image)`` pairs on all cores, in their order; only a few hundred images are held at a time."""

    def decode_chunk(chunk: Sequence[tuple[int, Encoded]]) -> list[tuple[int, DecodedImage | Unreadable]]:
        return [(row, _decode_or_reason(source, size, channels, fit)) for row, source in chunk]

    workers = cpu_count()
    remaining = iter(items)
    with DaemonPool(workers) as pool:
        while chunk := list(itertools.islice(remaining, 4 * workers * PER_TASK)):
            tasks = [chunk[start : start + PER_TASK] for start in range(0, len(chunk), PER_TASK)]
            # Pillow warns about metadata and, below MAX_PIXELS, about size; neither concerns the user.
            with warnings.catch_warnings(action="ignore"):
                futures = [pool.submit(decode_chunk, task) for task in tasks]
                decoded = [future.result() for future in futures]
            yield from itertools.chain.from_iterable(decoded)


def read_images(
    paths: Sequence[str | os.PathLike[str]], size: int, channels: int
) -> tuple[Pixels, list[str], list[tuple[str, str]]]:
    """Decode files into one array; returns it with the paths of its rows and ``(path, reason)`` of those left out."""
    names = [os.fspath(path) for path in paths]
    readable: list[str] = []
    skipped: list[tuple[str, str]] = []
    images = np.empty((len(names), size, size, channels), dtype=np.uint8)
    for row, result in decode_stream(enumerate(names), size, channels):
        if isinstance(result, Unreadable):
            skipped.append((names[row], str(result)))
        else:
            images[len(readable)] = result.pixels
            readable.append(names[row])
    return images[: len(readable)], readable, skipped


def _decode_or_reason(source: Encoded, size: int, channels: int, fit: Resize) -> DecodedImage | Unreadable:
    try:
        return read_image(source, size, channels, fit)
    except Unreadable as reason:
        return reason


@contextmanager
def _open(source: Encoded) -> Iterator[Image.Image]:
    """The image with only its header read; :class:`Unreadable` if it cannot or may not be loaded."""
    if isinstance(source, str) and os.path.splitext(source)[1].lower() in RAW_SUFFIXES:
        raise Unreadable("a raw file of a camera; convert it to JPEG")
    with ExitStack() as opened:
        if isinstance(source, Image.Image):
            image = opened.enter_context(source.copy())  # the caller's image stays open and unchanged
        else:
            try:
                file: IO[bytes] = open_file(source) if isinstance(source, str) else io.BytesIO(source)
                opened.enter_context(file)
                if file.seek(0, os.SEEK_END) > MAX_FILE_BYTES:
                    raise Unreadable(f"a file of more than {MAX_FILE_BYTES >> 30} GB")
                file.seek(0)
                image = opened.enter_context(Image.open(file, formats=_formats()))
                _require_few_scans(image, file)
            except Unreadable:
                raise
            except Image.DecompressionBombError:
                raise Unreadable("more than 100 megapixels") from None
            except UnidentifiedImageError:
                raise Unreadable(_why_unreadable(source)) from None
            except FileNotFoundError:
                raise Unreadable("the file does not exist") from None
            except OSError as error:
                raise Unreadable(error.strerror or str(error)) from None
            except Exception as error:  # see decode
                raise _damaged(error) from error
        _require_few_pixels(image)
        yield image


@cache
def _formats() -> tuple[str, ...]:
    try:
        import pillow_heif  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return FORMATS
    pillow_heif.register_heif_opener()
    return (*FORMATS, "HEIF")


def _require_few_scans(image: Image.Image, file: IO[bytes]) -> None:
    scans, pixels = scanned_pixels(image, file)
    if scans > MAX_SCANS:
        raise Unreadable(f"a JPEG of more than {MAX_SCANS} scans; save it again")
    if pixels > MAX_SCANNED_PIXELS:
        raise Unreadable(f"a JPEG of too many scans for its size ({image.width} x {image.height}); save it again")


def _require_few_pixels(image: Image.Image) -> None:
    size = f"({image.width} x {image.height})"
    if image.width * image.height > MAX_PIXELS:
        raise Unreadable(f"more than {MAX_PIXELS // 10**6} megapixels {size}")
    if max(image.size) > MAX_SIDE:
        raise Unreadable(f"more than {MAX_SIDE:,} pixels wide or high {size}")
    if image.mode in ("I", "F") and image.width * image.height > MAX_DEEP_PIXELS:
        raise Unreadable(
            f"more than {MAX_DEEP_PIXELS // 10**6} megapixels of 32 bits {size}; save it with 8 or 16 bits"
        )


def _require_memory(needed: int, size: tuple[int, int]) -> None:
    if needed > MAX_DECODED_BYTES:
        limit = f"{MAX_DECODED_BYTES // 10**6} MB"
        raise Unreadable(f"takes more than {limit} to decode ({size[0]} x {size[1]}); save a smaller copy")


def _why_unreadable(source: str | bytes) -> str:
    if isinstance(source, bytes):
        head = source[:1024]
    else:
        with open_file(source) as file:
            head = file.read(1024)
    if not head:
        return "the file is empty"
    if head[4:8] == b"ftyp" and head[8:12] in HEIC_BRANDS:
        return "HEIC, which Pillow cannot read; convert it to JPEG"
    if b"<svg" in head.lower():
        return "an SVG drawing, which has no pixels; convert it to PNG"
    if head.startswith(b"%!PS"):
        return "EPS is a program, not an image"
    if head.startswith(OTHER_FORMATS) or head[4:12] == b"ftypavif":
        return "a format that is not decoded; convert it to PNG or JPEG"
    return "not an image that Pillow can read"


def _damaged(error: Exception) -> Unreadable:
    return Unreadable(f"damaged image: {str(error) or type(error).__name__}")


def _upright(image: Image.Image) -> tuple[Image.Image, ImageIssue]:
    image.load()
    if image.mode == "P" and image.palette is None:
        raise Unreadable("damaged image: its palette is missing")
    try:
        transpose = TRANSPOSES.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # broken metadata is no reason to lose an intact image
        return image, NONE
    if transpose is None:
        return image, NONE
    _require_memory(bytes_to_turn(image), image.size)
    return image.transpose(transpose), ImageIssue.TURNED


def _flatten(image: Image.Image) -> Image.Image:
    """Opaque and 8 bits per channel."""
    if image.mode.startswith("I"):
        return _by_bands(image, "L", _scale_integers)
    if image.mode == "F":
        highest = max(float(_finite(band).max()) for _, band in _bands(image))
        return _by_bands(image, "L", lambda band: _scale_floats(band, 255 if highest <= 1 else 1))
    if image.has_transparency_data:
        return _by_bands(image, "RGB", _on_white)
    return image


def _bands(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    rows = max(1, BAND_PIXELS // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _by_bands(image: Image.Image, mode: str, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    converted = Image.new(mode, image.size)
    for top, band in _bands(image):
        converted.paste(convert(band), (0, top))
    return converted


def _scale_integers(band: Image.Image) -> Image.Image:
    values = np.asarray(band).clip(0, 65535).astype(np.uint32)
    return Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))


def _finite(band: Image.Image) -> npt.NDArray[np.float64]:
    return np.nan_to_num(np.asarray(band, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def _scale_floats(band: Image.Image, scale: int) -> Image.Image:
    return Image.fromarray((_finite(band) * scale).round().clip(0, 255).astype(np.uint8))


def _on_white(band: Image.Image) -> Image.Image:
    rgba = band.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")


def _as_mode(image: Image.Image, mode: str) -> Image.Image:
    """Without the copy that Pillow makes of an image that has the mode already."""
    return image if image.mode == mode and not image.has_transparency_data else image.convert(mode)


def _transform(image: Image.Image) -> ImageCms.ImageCmsTransform | None:
    """Of the image's profile, unless that is so large that it can only be there to fill the cache."""
    profile = image.info.get("icc_profile")
    return _to_srgb(profile) if profile is None or len(profile) <= MAX_PROFILE_BYTES else None


@lru_cache(maxsize=16)
def _to_srgb(profile: bytes | None) -> ImageCms.ImageCmsTransform | None:
    """None without a profile, for sRGB itself, for profiles of other than RGB images, and for broken ones."""
    if not profile:
        return None
    try:
        parsed = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if parsed.profile.xcolor_space.strip() != "RGB" or "srgb" in ImageCms.getProfileDescription(parsed).lower():
            return None
        return ImageCms.buildTransform(parsed, ImageCms.createProfile("sRGB"), "RGB", "RGB")
    except (ImageCms.PyCMSError, ImportError, OSError):
        return None
