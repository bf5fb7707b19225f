"""PASCAL VOC: masks by palette index, the publisher's colour map, annotations, and what is refused."""

import pickle

import numpy as np
import pytest
from PIL import Image

from meta500.datasets.voc import (
    CLASSES,
    SAMPLES,
    VocObject,
    colour_map,
    voc_annotation,
    voc_objects,
    voc_segmentation,
)
from meta500.errors import UserError

RANDOM = np.random.default_rng(2)
XML = """<annotation>
\t<folder>VOC2012</folder>
\t<filename>{name}.jpg</filename>
\t<source>
\t\t<database>The VOC2007 Database</database>
\t\t<annotation>PASCAL VOC2007</annotation>
\t\t<image>flickr</image>
\t</source>
\t<size>
\t\t<width>{width}</width>
\t\t<height>{height}</height>
\t\t<depth>3</depth>
\t</size>
\t<segmented>1</segmented>
\t<object>
\t\t<name>person</name>
\t\t<pose>Unspecified</pose>
\t\t<truncated>1</truncated>
\t\t<difficult>0</difficult>
\t\t<bndbox>
\t\t\t<xmin>2</xmin>
\t\t\t<ymin>1</ymin>
\t\t\t<xmax>9</xmax>
\t\t\t<ymax>7</ymax>
\t\t</bndbox>
\t\t<part>
\t\t\t<name>head</name>
\t\t\t<bndbox><xmin>3</xmin><ymin>2</ymin><xmax>5</xmax><ymax>4</ymax></bndbox>
\t\t</part>
\t</object>
\t<object>
\t\t<name>chair</name>
\t\t<bndbox>
\t\t\t<xmax>8.5</xmax>
\t\t\t<xmin>1.25</xmin>
\t\t\t<ymax>6</ymax>
\t\t\t<ymin>3</ymin>
\t\t</bndbox>
\t\t<difficult>1</difficult>
\t</object>
</annotation>
"""


def refused(call, *words):
    with pytest.raises(UserError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert str(word) in text, text


def save_mask(path, numbers, palette=None):
    image = Image.fromarray(numbers)
    image.putpalette((colour_map() if palette is None else palette).tobytes())
    assert image.mode == "P"
    image.save(path)


def kit(root, year="2012", parts=(("train", 3), ("val", 2)), devkit="VOCdevkit"):
    """A development kit of few pictures; the masks by name."""
    place = root / devkit / f"VOC{year}"
    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation", "Annotations"):
        (place / folder).mkdir(parents=True, exist_ok=True)
    masks, number = {}, 0
    for part, count in parts:
        names = []
        for _ in range(count):
            name, height, width = f"2007_{number:06d}", 8 + number, 12
            pixels = RANDOM.integers(0, 256, (height, width, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / "JPEGImages" / f"{name}.jpg")
            mask = RANDOM.integers(0, 21, (height, width), dtype=np.uint8)
            mask[::3] = 255
            save_mask(place / "SegmentationClass" / f"{name}.png", mask)
            (place / "Annotations" / f"{name}.xml").write_text(
                XML.format(name=name, width=width, height=height)
            )
            masks[name] = mask
            names.append(name)
            number += 1
        (place / "ImageSets" / "Segmentation" / f"{part}.txt").write_text("\n".join(names) + "\n")
    return place, masks


def load(folder, **options):
    return voc_segmentation(folder, **{"size": 16, "full": False, **options})


def test_colour_map_is_the_published_one():
    colours = colour_map()
    assert colours.shape == (256, 3) and colours.dtype == np.uint8
    # The table of the development kit: background to tvmonitor, and void.
    published = [
        *((0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0), (0, 0, 128), (128, 0, 128), (0, 128, 128)),
        *((128, 128, 128), (64, 0, 0), (192, 0, 0), (64, 128, 0), (192, 128, 0), (64, 0, 128), (192, 0, 128)),
        *(
            (64, 128, 128),
            (192, 128, 128),
            (0, 64, 0),
            (128, 64, 0),
            (0, 192, 0),
            (128, 192, 0),
            (0, 64, 128),
        ),
    ]
    np.testing.assert_array_equal(colours[:21], published)
    assert tuple(colours[255]) == (224, 224, 192)
    assert len(np.unique(colours, axis=0)) == 256


def test_pictures_and_masks_are_read_exactly(tmp_path):
    place, masks = kit(tmp_path)
    train, test = load(tmp_path)
    assert (len(train), len(test)) == (3, 2) and train.ignore == 255 and train.classes == CLASSES
    assert len(CLASSES) == 21 and train.default_loss == "cross_entropy" and "flickr" in train.licence
    assert train.shapes == {"image": (3, 16, 16), "label": (16, 16)}
    for index, (name, mask) in enumerate(list(masks.items())[:3]):
        stored = train.read(index)
        jpeg = np.asarray(Image.open(place / "JPEGImages" / f"{name}.jpg"))
        np.testing.assert_array_equal(stored["image"], jpeg.transpose(2, 0, 1))
        np.testing.assert_array_equal(stored["label"], mask)
    batch = test.batch([0, 1])
    assert batch["label"].dtype == np.int64 and set(np.unique(batch["label"])) <= {*range(21), 255}
    again = pickle.loads(pickle.dumps(test)).batch([0, 1])
    np.testing.assert_array_equal(again["label"], batch["label"])
    assert train.in_memory().ignore == 255


@pytest.mark.parametrize("folder", ["", "VOCdevkit", "VOCdevkit/VOC2012"])
def test_the_folder_may_be_any_of_the_three(tmp_path, folder):
    kit(tmp_path)
    assert len(load(tmp_path / folder)[0]) == 3


def test_named_place(tmp_path, monkeypatch):
    monkeypatch.setenv("META500_DATA", str(tmp_path))
    refused(
        voc_segmentation,
        "voc-segmentation/VOCdevkit/VOC2012/JPEGImages",
        "meta500 data get voc-segmentation",
        "give folder=...",
    )
    kit(tmp_path / "voc-segmentation")
    assert len(load(None, year=2012, limit=2)[0]) == 2


def test_void(tmp_path):
    _, masks = kit(tmp_path)
    mask = next(iter(masks.values()))
    background, _ = load(tmp_path, void="background")
    np.testing.assert_array_equal(background.read(0)["label"], np.where(mask == 255, 0, mask))
    assert background.ignore is None and len(background.classes) == 21
    own, _ = load(tmp_path, void="class")
    np.testing.assert_array_equal(own.read(0)["label"], np.where(mask == 255, 21, mask))
    assert own.ignore is None and own.classes == (*CLASSES, "void")
    refused(
        lambda: load(tmp_path, void="drop"),
        "unknown void of dataset 'voc-segmentation' 'drop'",
        "background, class, ignore",
    )


def test_lists_and_years(tmp_path):
    kit(tmp_path, "2007", (("trainval", 3), ("test", 2)))
    train, test = load(tmp_path, year="2007", train="trainval", test="test")
    assert (len(train), len(test)) == (3, 2)
    refused(
        lambda: load(tmp_path, year="2007", train="trainval"),
        "the pictures of test='val' are among those of train='trainval'",
    )
    refused(lambda: load(tmp_path, test="test"), "unknown test of dataset 'voc-segmentation' 'test'", "val")
    refused(lambda: load(tmp_path, train="all"), "unknown train of dataset")
    refused(lambda: load(tmp_path, year="2013"), "unknown year of dataset", "2007, 2012")
    refused(lambda: load(tmp_path / "VOCdevkit" / "VOC2007"), "is not VOC2012; give year='2007'")
    assert SAMPLES["2012"] == {"train": 1464, "val": 1449, "trainval": 2913}


def test_lists_must_be_whole(tmp_path):
    place, _ = kit(tmp_path)
    listed = place / "ImageSets" / "Segmentation" / "train.txt"
    refused(lambda: voc_segmentation(tmp_path), listed, "holds 3 samples", "holds 1464", "full=False")
    text = listed.read_text()
    for wrong, words in (
        ("../../x", "'../../x' is no name of a picture"),
        ("2007_000000", "is listed twice"),
        ("2007_000099", "2007_000099.jpg, which"),
    ):
        listed.write_text(f"{text}{wrong}\n")
        refused(lambda words=words: load(tmp_path), words)
    listed.write_text("\n")
    refused(lambda: load(tmp_path), listed, "holds no samples")
    listed.unlink()
    refused(lambda: load(tmp_path), f"there is no {listed}", "meta500 data get voc-segmentation")


@pytest.mark.parametrize(
    "kind, ending", [("JPEGImages", "jpg"), ("SegmentationClass", "png"), ("Annotations", "xml")]
)
def test_missing_files_are_named(tmp_path, kind, ending):
    place, _ = kit(tmp_path)
    lost = place / kind / f"2007_000001.{ending}"
    lost.unlink()
    refused(lambda: load(tmp_path), f"there is no {lost}, which", "train.txt lists; 1 of 3 are missing")


def test_masks_in_another_palette_are_refused(tmp_path):
    place, masks = kit(tmp_path)
    path = place / "SegmentationClass" / "2007_000000.png"
    mask = masks["2007_000000"]
    swapped = colour_map()
    swapped[[3, 4]] = swapped[[4, 3]]
    save_mask(path, mask, swapped)
    refused(
        lambda: load(tmp_path)[0].batch([0]),
        path,
        "entry 3 of its palette is (0, 0, 128)",
        "has (128, 128, 0)",
    )
    Image.fromarray(mask).save(path)
    refused(lambda: load(tmp_path)[0].batch([0]), path, "has no palette")
    Image.fromarray(colour_map()[mask]).save(path)
    refused(lambda: load(tmp_path)[0].batch([0]), path, "is a PNG of RGB")
    mask = mask.copy()
    mask[2, 5] = 21
    save_mask(path, mask)
    refused(
        lambda: load(tmp_path)[0].batch([0]),
        path,
        "pixel (row 2, column 5) holds 21; masks of VOC hold 0..20 and 255 (void)",
    )
    refused(lambda: load(tmp_path, check=True), path, "holds 21")
    load(tmp_path, limit=1, train="train")


def test_picture_mask_and_annotation_must_agree(tmp_path):
    place, _ = kit(tmp_path)
    xml = place / "Annotations" / "2007_000000.xml"
    xml.write_text(XML.format(name="2007_000001", width=12, height=8))
    refused(lambda: load(tmp_path)[0].batch([0]), xml, "annotates '2007_000001.jpg', not '2007_000000.jpg'")
    xml.write_text(XML.format(name="2007_000000", width=8, height=12))
    refused(
        lambda: load(tmp_path)[0].batch([0]), xml, "is 8 pixels wide and 12 high; it is 12 wide and 8 high"
    )
    refused(lambda: load(tmp_path, check=True), xml)
    picture = place / "JPEGImages" / "2007_000001.jpg"
    picture.write_bytes((place / "JPEGImages" / "2007_000002.jpg").read_bytes())
    refused(
        lambda: load(tmp_path)[0].batch([1]), "the mask has 9 x 12 pixels, its picture", picture, "10 x 12"
    )
    picture.write_bytes(picture.read_bytes()[:300])
    refused(lambda: load(tmp_path)[0].batch([1]), picture)


def test_objects_of_an_annotation(tmp_path):
    path = tmp_path / "a.xml"
    path.write_text(XML.format(name="2007_000032", width=500, height=281))
    assert voc_objects(path) == (
        VocObject("person", (2, 1, 9, 7), difficult=False, truncated=True),
        VocObject("chair", (1.25, 3, 8.5, 6), difficult=True, truncated=False),
    )
    found = voc_annotation(path)
    assert (found.filename, found.width, found.height) == ("2007_000032.jpg", 500, 281)
    path.write_text(
        XML.split("\t<object>", maxsplit=1)[0].format(name="x", width=5, height=6) + "</annotation>"
    )
    assert voc_objects(path) == ()


def test_damaged_and_hostile_annotations(tmp_path):
    path = tmp_path / "a.xml"
    good = XML.format(name="a", width=12, height=8)

    def wrong(text, *words):
        path.write_text(text)
        refused(lambda: voc_objects(path), path, *words)

    wrong("", "is no well-formed XML: no element found at byte 0")
    wrong(good[:100], "is no well-formed XML: no element found at byte 100 (line 5)")
    wrong(good.replace("</size>", "</siz>"), "mismatched tag")
    wrong('<!DOCTYPE a [<!ENTITY x "y">]><annotation>&x;</annotation>', "line 1: has a document type")
    wrong('<!DOCTYPE a SYSTEM "file:///etc/passwd"><annotation/>', "has a document type")
    wrong("<annotation>&x;</annotation>", "undefined entity")
    wrong('<?xml version="1.0" encoding="utf-99"?><annotation/>', "has an encoding that is not read")
    wrong('<?xml version="1.0" encoding="shift_jis"?><annotation/>', "has an encoding that is not read")
    wrong("<a>" * 40 + "</a>" * 40, "elements are nested too deeply")
    wrong("<html/>", "its root is <html>; an annotation's is <annotation>")
    wrong(good.replace("a.jpg", " "), "it has no <filename>")
    wrong(good.replace("<name>chair</name>", ""), "object 2 has no <name>")
    wrong(good.replace("<xmin>2</xmin>", ""), "object 1 has no <bndbox><xmin>")
    wrong(good.replace("<xmin>2<", "<xmin>two<"), "<bndbox><xmin> of object 1 is 'two', not a number")
    wrong(good.replace("<xmin>2<", "<xmin>nan<"), "is 'nan', not a number")
    wrong(
        good.replace("<xmin>2<", "<xmin>10<"),
        "object 1 has the box (10.0, 1.0, 9.0, 7.0); its minimum is above its maximum",
    )
    wrong(good.replace("<width>12<", "<width>0<"), "says that the picture has 0 x 8 pixels")
    wrong(good.replace("<width>12<", "<width>1.5<"), "says that the picture has 1.5 x 8 pixels")
    wrong("<annotation>" + " " * 2**20 + "</annotation>", "has more than 1048576 bytes")
    refused(lambda: voc_objects(tmp_path / "no.xml"), "there is no such file")


def test_flags_are_checked(tmp_path):
    kit(tmp_path)
    for name in ("full", "check", "normalize"):
        refused(lambda name=name: load(tmp_path, **{name: "no"}), f"{name} must be True or False, not 'no'")
    mean = load(tmp_path, normalize=True)[0].batch([0])["image"]
    plain = load(tmp_path)[0].batch([0])["image"]
    np.testing.assert_allclose(mean[0, 2], (plain[0, 2] - 0.406) / 0.225, atol=1e-5)
