"""The codecs of an app can be given to whoever else needs them."""

from flowpg import Compression, FlowApp, FlowClient
from flowpg.model.codecs import CodecChain


def test_what_an_app_has_is_what_a_client_takes() -> None:
    codec = Compression()
    app = FlowApp("billing", codecs=[codec])
    assert list(CodecChain(app.codecs)) == [codec]
    FlowClient("postgresql://nowhere.invalid/x", codecs=app.codecs).close()
