"""Data by URL: web servers, with TLS and without."""

import functools
import http.server
import os
import ssl
import subprocess
import sys
import threading

import feedline as fl
import pytest


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files of a folder; whole ones, for that is all it can."""

    def log_message(self, *args):
        pass


@pytest.fixture
def web(photos):
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(photos))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_names_on_a_web_server_come_from_braces_and_lists(web, photos):
    inside = sorted(path for path in photos.rglob("*.*") if path.is_file())
    urls = [f"{web}/{path.relative_to(photos)}" for path in inside]
    ds = fl.files(urls)
    assert [bytes(ds[at]["data"]) for at in range(len(ds))] == [p.read_bytes() for p in inside]
    labels = [str(path.parent.name) for path in inside]
    assert len(fl.files(urls, labels=labels).classes) == len(set(labels))
    assert len(fl.files(web + "/cat/{00..11}.png")) == 12
    assert bytes(fl.files(web + "/{cat/03,dog/14}.png")[1]["data"]) == inside[14].read_bytes()
    assert len(fl.files(str(photos) + "/{cat,dog}/")) == 20
    with pytest.raises(fl.SourceError, match="12.png"):
        fl.files(web + "/cat/{00..12}.png").loader()
    with pytest.raises(fl.SourceError, match="name its objects"):
        fl.images(web + "/").loader()


def test_wrong_urls_are_refused_before_anybody_is_asked():
    for url, words in [
        ("https://user:canary@host/x.bin", "credentials come from the environment"),
        ("https://host/x.bin?sig=canary", "secret"),
        ("ftp://host/x.bin", "none of the schemes"),
        ("s3://", "no bucket"),
    ]:
        with pytest.raises(fl.PipelineError, match=words) as error:
            fl.files(url)
        assert "canary" not in str(error.value)
    with pytest.raises(fl.SourceError, match="FEEDLINE_ALLOW_HTTP"):
        fl.files("http://host.example/x.bin").loader()
    with pytest.raises(fl.SourceError, match="provider"):
        fl.files("http://169.254.169.254/latest/").loader()


def test_tls_is_checked_against_known_certificates(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"12345")
    certs = tmp_path / "certs"
    subprocess.run([sys.executable, "-m", "feedline", "certs", str(certs)], check=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certs / "server.pem", certs / "server.key")
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(tmp_path))
    )
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"https://localhost:{server.server_port}/x.bin"
    read = "import sys, feedline as fl; print(bytes(fl.files(sys.argv[1])[0]['data']).decode())"

    def run(**more):
        known = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
        command = [sys.executable, "-c", read, url]
        return subprocess.run(command, env={**known, **more}, capture_output=True, text=True)

    trusted = run(SSL_CERT_FILE=str(certs / "ca.pem"))
    assert trusted.stdout == "12345\n", trusted.stderr
    unknown = run()
    assert unknown.returncode != 0 and "cannot be trusted" in unknown.stderr, unknown.stderr
    server.shutdown()
    server.server_close()


def test_a_worker_reads_what_lies_below_the_urls_that_it_was_given(web, photos):
    with fl.LocalCluster(workers=0) as cluster:
        command = [sys.executable, "-m", "feedline", "worker", "--dispatcher", cluster.url]
        command += ["--threads", "1", "--allow-url", web + "/cat/"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            try:
                assert worker.stdout is not None and worker.stdout.readline()
                cluster.wait(1)
                allowed = fl.files(web + "/cat/{00..11}.png").batch(4)
                with allowed.distribute(cluster.url, job="allowed") as loader:
                    found = [bytes(one) for batch in loader for one in batch["data"]]
                assert found == [p.read_bytes() for p in sorted((photos / "cat").iterdir())]
                for number, other in enumerate([web + "/dog/{12..19}.png", str(photos) + "/cat/"]):
                    refused = fl.files(other).batch(4)
                    with refused.distribute(cluster.url, job=f"refused {number}") as loader:
                        with pytest.raises(fl.SourceError, match="may not be read here"):
                            list(loader)
            finally:
                worker.terminate()
