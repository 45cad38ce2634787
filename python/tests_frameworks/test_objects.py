"""Images in a bucket of moto's server: an S3 that was written by others."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import feedline as fl

boto3 = pytest.importorskip("boto3")
moto = pytest.importorskip("moto.server")


@pytest.fixture(scope="module")
def s3():
    """Moto's server: an S3 that was written by others."""
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def photos(tmp_path):
    """Twenty pictures in two classes."""
    for number in range(20):
        folder = tmp_path / "photos" / ("cat" if number < 12 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (24, 32, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    return tmp_path / "photos"


@pytest.fixture
def bucket(s3, photos, monkeypatch):
    """The photos in a bucket, and an environment that finds them."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    client = boto3.client("s3", region_name="us-east-1", endpoint_url=s3)
    client.create_bucket(Bucket="photos")
    for path in photos.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "photos", f"train/{path.relative_to(photos)}")
    yield client
    for item in client.list_objects_v2(Bucket="photos").get("Contents", []):
        client.delete_object(Bucket="photos", Key=item["Key"])
    client.delete_bucket(Bucket="photos")


def same(one, other):
    batches = 0
    for a, b in zip(one, other, strict=True):
        batches += 1
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
    assert batches


def prepared(path):
    return fl.images(path).shuffle(seed=3).decode().random_resized_crop(16).batch(3)


def test_images_of_a_bucket_are_those_of_a_folder(bucket, photos):
    near, far = prepared(photos), prepared("s3://photos/train/")
    assert far.classes == near.classes and len(far) == len(near)
    same(near.loader(), far.loader())
    loader = far.loader()
    next(iter(loader))
    state = loader.state_dict()
    assert "canary" not in str(state) and "canary" not in str(far.plan)
    rest = far.loader()
    rest.load_state_dict(state)
    wanted = list(near.loader())
    same(wanted[1:], rest)


def test_an_object_that_changes_is_an_error(bucket, photos):
    ds = prepared("s3://photos/train/")
    assert len(ds.loader()) > 0
    key = bucket.list_objects_v2(Bucket="photos")["Contents"][0]
    bucket.put_object(Bucket="photos", Key=key["Key"], Body=b"x" * key["Size"])
    with pytest.raises(fl.RecordError, match="changed"):
        list(ds.loader())


def test_what_is_missing_is_named(bucket):
    for url, words in [
        ("s3://photos/nothing/", "holds no objects"),
        ("s3://no-such-bucket/x/", "no bucket"),
    ]:
        with pytest.raises(fl.SourceError, match=words) as error:
            fl.images(url).loader()
        assert url in str(error.value)


def test_workers_read_what_they_are_allowed_to(bucket, photos):
    far = prepared("s3://photos/train/")
    with fl.LocalCluster(workers=1, threads=1) as cluster:
        cluster.wait(1)
        with far.distribute(cluster.url, job="all", seed=5) as remote:
            same(prepared(photos).loader(seed=5), remote)
