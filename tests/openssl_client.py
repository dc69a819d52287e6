"""A TLS client made of OpenSSL's own functions, for what Python's ``ssl`` cannot ask for."""

from __future__ import annotations

import ctypes

KEY_UPDATE_NOT_REQUESTED, KEY_UPDATE_REQUESTED = 0, 1

_ssl = ctypes.CDLL("libssl.so.3")
_crypto = ctypes.CDLL("libcrypto.so.3")
_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
for library, name, result, arguments in (
    (_ssl, "TLS_client_method", _POINTER, ()),
    (_ssl, "SSL_CTX_new", _POINTER, (_POINTER,)),
    (_ssl, "SSL_CTX_free", None, (_POINTER,)),
    (_ssl, "SSL_new", _POINTER, (_POINTER,)),
    (_ssl, "SSL_free", None, (_POINTER,)),
    (_ssl, "SSL_set_bio", None, (_POINTER, _POINTER, _POINTER)),
    (_ssl, "SSL_set_connect_state", None, (_POINTER,)),
    (_ssl, "SSL_do_handshake", _INT, (_POINTER,)),
    (_ssl, "SSL_key_update", _INT, (_POINTER, _INT)),
    (_ssl, "SSL_write", _INT, (_POINTER, ctypes.c_char_p, _INT)),
    (_ssl, "SSL_read", _INT, (_POINTER, _POINTER, _INT)),
    (_crypto, "BIO_s_mem", _POINTER, ()),
    (_crypto, "BIO_new", _POINTER, (_POINTER,)),
    (_crypto, "BIO_read", _INT, (_POINTER, _POINTER, _INT)),
    (_crypto, "BIO_write", _INT, (_POINTER, ctypes.c_char_p, _INT)),
    (_crypto, "ERR_clear_error", None, ()),
):
    function = getattr(library, name)
    function.restype, function.argtypes = result, list(arguments)  # type: ignore[call-overload]


class OpensslClient:
    """Trusts everybody; bytes go in and out by hand."""

    def __init__(self) -> None:
        self._context = _ssl.SSL_CTX_new(_ssl.TLS_client_method())
        self._tls = _ssl.SSL_new(self._context)
        memory = _crypto.BIO_s_mem()
        self._incoming, self._outgoing = _crypto.BIO_new(memory), _crypto.BIO_new(memory)
        _ssl.SSL_set_bio(self._tls, self._incoming, self._outgoing)
        _ssl.SSL_set_connect_state(self._tls)

    def close(self) -> None:
        _ssl.SSL_free(self._tls)
        _ssl.SSL_CTX_free(self._context)

    def handshake(self) -> bool:
        """Go on; whether it is done."""
        done = _ssl.SSL_do_handshake(self._tls) == 1
        _crypto.ERR_clear_error()
        return done

    def update_keys(self, *, asks_for_ours: bool) -> None:
        """Change the keys of what is sent, and ask the other side for the same."""
        kind = KEY_UPDATE_REQUESTED if asks_for_ours else KEY_UPDATE_NOT_REQUESTED
        assert _ssl.SSL_key_update(self._tls, kind) == 1
        assert self.handshake()

    def write(self, data: bytes) -> None:
        assert _ssl.SSL_write(self._tls, data, len(data)) == len(data)

    def read(self) -> bytes:
        """What has come; empty if nothing has."""
        buffer = ctypes.create_string_buffer(65_536)
        count = _ssl.SSL_read(self._tls, buffer, len(buffer))
        _crypto.ERR_clear_error()
        return buffer.raw[:count] if count > 0 else b""

    def output(self) -> bytes:
        """What is to be sent."""
        sent, buffer = b"", ctypes.create_string_buffer(65_536)
        while (count := _crypto.BIO_read(self._outgoing, buffer, len(buffer))) > 0:
            sent += buffer.raw[:count]
        return sent

    def feed(self, data: bytes) -> None:
        """What has arrived."""
        if data:
            assert _crypto.BIO_write(self._incoming, data, len(data)) == len(data)
