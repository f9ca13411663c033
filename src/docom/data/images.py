"""Images as samples: read with Pillow, checked, all of one shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from docom.data.files import MAX_BYTES, DataError
from docom.data.samples import Samples, of_arrays

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


def image_folder(path: Path, by: str | None, size: int | None) -> Samples:
    """``class/image.png``, or ``agent/class/image.png``."""
    by_folder = by is not None
    shape = "agent/class/image.png" if by_folder else "class/image.png"
    files = [file for file in sorted(path.glob("*/*/*" if by_folder else "*/*")) if file.suffix.lower() in ENDINGS]
    if not files:
        raise DataError(f"{path}: holds no images as {shape}, and no data set that save_to_disk has written")
    if by not in (None, "folder"):
        raise DataError(f"images belong to agents by folders: agent/class/image.png and --by folder; got --by {by}")
    images, total = [], 0
    for file in files:
        images.append(pixels_of(file, str(file), size))
        total += images[-1].nbytes
        if total > MAX_BYTES:
            raise DataError(f"{path}: its images take more than {MAX_BYTES:,} bytes; make them smaller with --size")
    parts = [file.relative_to(path).parts for file in files]
    owners = None if by is None else [part[0] for part in parts]
    return of_arrays(alike(images, str(path)), np.array([part[-2] for part in parts]), owners)


def pixels_of(source: Any, name: str, size: int | None) -> NDArray[np.uint8]:
    """An image as [channels, height, width]: one channel where it is grey, else three."""
    from PIL import Image

    try:
        with Image.open(source) as image:
            if image.width * image.height > 1 << 26:
                raise DataError(f"{name}: an image of {image.width} x {image.height} pixels is too large")
            image.load()
            grey = image.mode in ("1", "L", "I", "I;16")
            found = image.convert("L" if grey else "RGB")
            if size is not None:
                found = found.resize((size, size))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{name}: no image ({error})") from None
    pixels = np.asarray(found, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def alike(images: list[NDArray[np.uint8]], where: str) -> NDArray[np.uint8]:
    """The images in one array, which is possible if all have one shape."""
    shapes = {image.shape for image in images}
    if len(shapes) > 1:
        few = ", ".join(" x ".join(map(str, shape)) for shape in sorted(shapes)[:3])
        raise DataError(f"{where}: the images differ in shape ({few}); bring them to one with --size 28")
    return np.stack(images)
