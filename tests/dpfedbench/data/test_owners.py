"""Owners of records: what readers tell, what a prepared data set keeps."""

import json

import numpy as np
import pytest

from dpfedbench.data.images import load_dataset
from dpfedbench.data.leaf import owner_counts as leaf_counts
from dpfedbench.data.leaf import read as read_leaf
from dpfedbench.data.records import load_any_records, load_records
from dpfedbench.data.writers import READERS, count_writers
from dpfedbench.errors import BenchError
from tests.dpfedbench.data.test_image_folder import read_pictures

from .conftest import flat_picture, refusal, write_files

RECORDS = {
    "a": {"ann": 4, "bob": 3},
    "b": {"bob": 4, "cy": 5},
}
"""Pictures of each owner in each class."""


def draw_users(root, records=RECORDS):
    """Draw pictures whose brightness is unique, named after their owners."""
    pictures = {}
    brightness = 0
    for label, users in records.items():
        for user, count in users.items():
            for index in range(count):
                name = f"shapes/{label}/{user}_{index}.png"
                pictures[name] = flat_picture(brightness, 8, "L")
                brightness += 1
    return write_files(root, pictures)


def brightness_of(user, records=RECORDS):
    """Return the brightness of a user's pictures."""
    values = set()
    brightness = 0
    for users in records.values():
        for name, count in users.items():
            if name == user:
                values |= set(range(brightness, brightness + count))
            brightness += count
    return values


def test_prepared_records_keep_the_owner_of_each_picture(tmp_path):
    raw = read_pictures(draw_users(tmp_path), owner=r"/([a-z]+)_")
    raw.save(tmp_path / "prepared", {"name": "shapes"})
    dataset = load_records(tmp_path / "prepared")
    assert dataset.owners.names == ("ann", "bob", "cy")
    assert len(dataset.images) == 16
    for owner, name in enumerate(dataset.owners.names):
        held = dataset.images[dataset.owners.of_example == owner]
        assert set(held[:, 0, 0, 0].tolist()) == brightness_of(name)
    assert dataset.summary["owners"] == 3


def test_prepared_classes_keep_the_owner_of_each_picture(tmp_path):
    records = {name: {"ann": 2, "bob": 2} for name in "abc"}
    split = {"train": 1, "validation": 1, "test": 1}
    changes = {"test_images": None, "split_classes": split, "owner": r"/([a-z]+)_"}
    raw = read_pictures(draw_users(tmp_path, records), **changes)
    raw.save(tmp_path / "prepared", {"name": "shapes"})
    dataset = load_dataset(tmp_path / "prepared")
    assert dataset.owners.of_example.shape == (3, 4)
    flat = load_any_records(tmp_path / "prepared")
    for owner, name in enumerate(dataset.owners.names):
        expected = brightness_of(name, records)
        held = dataset.images[dataset.owners.of_example == owner]
        assert set(held[:, 0, 0, 0].tolist()) == expected
        held = flat.images[flat.owners.of_example == owner]
        assert set(held[:, 0, 0, 0].tolist()) == expected


def test_data_set_without_owners_has_none(tmp_path):
    raw = read_pictures(draw_users(tmp_path))
    raw.save(tmp_path / "prepared", {"name": "shapes"})
    assert load_records(tmp_path / "prepared").owners is None
    assert not (tmp_path / "prepared" / "owners.csv").exists()


def test_edited_owners_are_refused(tmp_path):
    raw = read_pictures(draw_users(tmp_path), owner=r"/([a-z]+)_")
    raw.save(tmp_path / "prepared", {"name": "shapes"})
    path = tmp_path / "prepared" / "owners.csv"
    path.write_text(path.read_text().replace("bob", "ann"))
    with pytest.raises(BenchError, match="its content differs from its summary"):
        load_records(tmp_path / "prepared")


def test_owners_of_pictures_are_read_from_a_table(tmp_path):
    root = draw_users(tmp_path)
    files = sorted((root / "shapes").rglob("*.png"))
    lines = ["file,owner"]
    for path in files:
        below = path.relative_to(root / "shapes").as_posix()
        lines.append(f"{below},{path.name.partition('_')[0]}")
    (root / "shapes" / "people.csv").write_text("\n".join(lines))
    by_table = read_pictures(root, owners="people.csv")
    by_pattern = read_pictures(root, owner=r"/([a-z]+)_")
    assert by_table.train_owners.tolist() == by_pattern.train_owners.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"owner": r"/(ann|bob)_"}, r"5 pictures .* have no owner, for instance b/cy_"),
        ({"owner": "("}, "is no regular expression"),
        ({"owner": "[a-z]+_"}, "has no group"),
        ({"owners": "people.csv"}, r"people\.csv cannot be read"),
        ({"owner": "(a)", "owners": "people.csv"}, "give either owner"),
    ],
)
def test_pictures_without_owners_are_refused(tmp_path, options, message):
    root = draw_users(tmp_path)
    with pytest.raises(BenchError, match=message):
        read_pictures(root, **options)


# LEAF's layout


def leaf_file(**users):
    """Return a file of LEAF; each user has labels, and images of that brightness."""
    data = {
        user: {"x": [[label / 255] * 4 for label in labels], "y": labels}
        for user, labels in users.items()
    }
    sizes = [len(labels) for labels in users.values()]
    return {"users": list(users), "num_samples": sizes, "user_data": data}


def write_leaf(root, **splits):
    contents = {}
    for split, files in splits.items():
        for number, values in enumerate(files):
            text = values if isinstance(values, str) else json.dumps(values)
            contents[f"people/{split}/{number}.json"] = text.encode()
    return write_files(root, contents)


def read_people(root):
    return read_leaf(root, root, folder="people", height=2, width=2)


def test_leaf_users_of_unequal_size_own_their_records(tmp_path):
    root = write_leaf(
        tmp_path,
        train=[leaf_file(ann=[0, 1, 2], cy=[2]), leaf_file(bob=[1, 1])],
        test=[leaf_file(ann=[2], bob=[0])],
    )
    raw = read_people(root)
    assert raw.train_owners.tolist() == ["ann"] * 3 + ["bob"] * 2 + ["cy"]
    assert raw.train_labels.tolist() == [0, 1, 2, 1, 1, 2]
    assert raw.train_images[:, 0, 0, 0].tolist() == [0, 1, 2, 1, 1, 2]
    assert raw.test_owners.tolist() == ["ann", "bob"]
    assert leaf_counts(root, folder="people").tolist() == [[3], [2], [1]]


def test_leaf_data_that_are_not_split_leave_a_tenth_of_each_user_for_the_test(tmp_path):
    root = write_leaf(tmp_path, all_data=[leaf_file(ann=[0] * 20, bob=[1] * 3)])
    raw = read_people(root)
    assert raw.test_owners.tolist() == ["ann", "ann", "bob"]
    assert leaf_counts(root, folder="people").tolist() == [[18], [2]]
    assert np.unique(raw.train_owners, return_counts=True)[1].tolist() == [18, 2]


def cut_images():
    values = leaf_file(ann=[0, 1])
    values["user_data"]["ann"]["x"].pop()
    return values


def short_image():
    values = leaf_file(ann=[0, 1])
    values["user_data"]["ann"]["x"][1].pop()
    return values


def wrong_number():
    return leaf_file(ann=[0, 1]) | {"num_samples": [3]}


def bright_value():
    values = leaf_file(ann=[0, 1])
    values["user_data"]["ann"]["x"][0][0] = 1.5
    return values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (json.dumps(leaf_file(ann=[0, 1]))[:-9], "is cut"),
        (cut_images(), "ann has 1 images and 2 labels"),
        (short_image(), "ann has an image that is not 4 values"),
        (bright_value(), "a value is out of range"),
        (wrong_number(), "ann has 2 records, but num_samples says 3"),
        (leaf_file(ann=[]), "ann has no records"),
        (leaf_file(**{" ": [0]}), "an owner has no name"),
        (
            '{"users": ["a", "a"], "num_samples": [1, 1],'
            ' "user_data": {"a": {"x": [[0,0,0,0]], "y": [0]},'
            ' "a": {"x": [[0,0,0,0]], "y": [0]}}}',
            "the user a is there twice",
        ),
    ],
)
def test_damaged_leaf_user_is_refused_in_one_line(tmp_path, values, message):
    root = write_leaf(tmp_path, train=[values], test=[leaf_file(ann=[0])])
    with pytest.raises(BenchError, match=message) as caught:
        read_people(root)
    assert "\n" not in str(caught.value)
    assert str(root / "people") in str(caught.value)


def test_leaf_user_in_two_files_is_refused(tmp_path):
    files = [leaf_file(ann=[0]), leaf_file(ann=[1])]
    root = write_leaf(tmp_path, train=files, test=[leaf_file(bob=[0])])
    with pytest.raises(BenchError, match="the user ann is there twice"):
        read_people(root)


def test_missing_femnist_names_its_place_and_its_stand_in(tmp_path):
    from dpfedbench.data.leaf import read_femnist

    assert "writers" in refusal(lambda: read_femnist(tmp_path, tmp_path))


# Drawn writers


def test_writers_have_the_sizes_that_are_counted_beforehand():
    raw = READERS["writers"](None, None)
    names, sizes = np.unique(raw.train_owners, return_counts=True)
    assert len(names) == 240
    assert sizes.tolist() == count_writers(None)[:, 0].tolist()
    assert sizes.max() > 8 * sizes.min()
    assert set(raw.test_owners.tolist()) == set(names.tolist())
    assert len(np.unique(raw.train_labels)) == 62
