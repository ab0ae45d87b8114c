"""The runs of docs/gallery.md, and their HTML reports: from the samples and from the real reports for tests."""

import lzma
import shutil
import tempfile
from pathlib import Path

import nsyspipe
from nsyspipe.report import export

ROOT = Path(__file__).parents[1]

# By the name of the picture: where the reports are, without rank and suffix.
GALLERY = {
    "ddp": "sample_reports/ddp-4gpu-before",
    "straggler": "tests/real/ddp-2gpu-straggler",
    "fsdp2": "tests/real/4gpu/fsdp2",
    "tensor": "tests/real/4gpu/tp",
    "pipeline": "tests/real/4gpu/pp",
    "experts": "tests/real/4gpu/moe",
}


def write_gallery_page(name: str, folder: Path) -> Path:
    """Write the HTML report of a run of the gallery into a folder, and return its path."""
    stem = ROOT / GALLERY[name]
    with tempfile.TemporaryDirectory() as unpacked:
        for packed in stem.parent.glob(f"{stem.name}_[0-9].sqlite.xz"):
            with lzma.open(packed) as source, (Path(unpacked) / packed.stem).open("wb") as target:
                shutil.copyfileobj(source, target)
        are_packed = any(Path(unpacked).iterdir())
        reports = Path(unpacked) if are_packed else stem.parent
        run = nsyspipe.load(str(reports / f"{stem.name}_[0-9].sqlite"), label=name, jobs=1)
        page = folder / f"{name}.html"
        export.write(run, page, force=True)
    return page
