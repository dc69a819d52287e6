"""Sounds are decoded as llama.cpp would, within limits, or refused with the reason."""

from __future__ import annotations

import base64
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.language.images.image_parts import check_senses, show_media
from paddler_trio.language.refusal import Refusal
from paddler_trio.language.sounds import sounds
from paddler_trio.language.sounds.sounds import SecondsBudget, SoundError, read_sound
from paddler_trio.wire.engine.media import Senses, Sound
from paddler_trio.wire.trio.work import ConversationPrompt
from sound_models import RATE, flac_of_silence, mp3_of_silence, sound_part, tone, wav, wav_header


def read(content: bytes, *, rate: int = RATE, budget: SecondsBudget | None = None) -> np.ndarray:
    text = base64.b64encode(content).decode()
    return np.frombuffer(read_sound(text, rate=rate, budget=budget).samples, np.float32)


def test_a_sound_is_heard_as_it_is_and_filled_up_with_silence() -> None:
    samples = tone(440, seconds=0.25)
    heard = read(wav(samples))
    assert heard.dtype == np.float32
    assert len(heard) == RATE * 3 // 10
    assert np.abs(heard[: len(samples)] - samples).max() < 1e-4
    assert not heard[len(samples) :].any()


@pytest.mark.parametrize(("rate", "channels"), [(8000, 1), (44100, 2), (192_000, 8), (16_000, 192)])
def test_any_rate_and_channels_become_the_models(rate: int, channels: int) -> None:
    heard = read(wav(tone(440, seconds=0.5, rate=rate), rate=rate, channels=channels))
    assert len(heard) in (RATE // 2, RATE // 2 + 1600)
    assert np.abs(np.fft.rfft(heard[: RATE // 2])).argmax() == 440 // 2
    assert 0.5 < np.abs(heard).max() <= 0.95


def test_other_formats_are_heard() -> None:
    assert not read(flac_of_silence(seconds=2)).any()
    assert not read(mp3_of_silence(seconds=2)).any()
    assert len(read(flac_of_silence(seconds=2))) >= 2 * RATE
    assert len(read(mp3_of_silence(seconds=2))) >= 1.9 * RATE


@pytest.mark.parametrize("make", [flac_of_silence, mp3_of_silence])
def test_a_small_file_of_hours_is_left_at_the_limit(make: object) -> None:
    bomb = make(seconds=7200)  # type: ignore[operator]
    assert len(bomb) < 8_000_000
    budget = SecondsBudget(60)
    with pytest.raises(SoundError, match="more than 60 s together, for which one slot"):
        read(bomb, budget=budget)
    assert 60 < budget.spent_s < 62  # one piece too many
    with pytest.raises(SoundError, match="more than 600 s together, the limit"):
        read(bomb, budget=SecondsBudget(1e9))


def test_sounds_of_a_request_share_their_seconds() -> None:
    budget = SecondsBudget(1.5)
    read(wav(tone(440)), budget=budget)
    with pytest.raises(SoundError, match="together"):
        read(wav(tone(550)), budget=budget)


def test_numbers_that_are_none_are_silence_and_loud_ones_are_cut() -> None:
    values = [float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 0.5]
    heard = read(wav_header(kind=3, bits=32, size=24) + struct.pack("<6f", *values))
    assert heard[:6].tolist() == [0.0, 1.0, -1.0, 1.0, -1.0, 0.5]


GOOD = wav(tone(440, seconds=0.2))
HOSTILE = {
    "nothing": (b"", "0 bytes"),
    "no format": (b"what is this?" * 9, "of no known format"),
    "only a name": (b"RIFF", "broken"),
    "no samples": (wav(tone(440, seconds=0)), "0 samples"),
    "cut header": (GOOD[:30], "broken"),
    "no channels": (wav_header(channels=0) + bytes(64), "broken"),
    "too many channels": (wav_header(channels=300) + bytes(6000), "broken"),
    "no rate": (wav_header(rate=0) + bytes(64), "broken"),
    "a huge rate": (wav_header(rate=2**32 - 1) + bytes(64), "broken"),
    "no bits": (wav_header(bits=0) + bytes(64), "broken"),
    "only a frame": (mp3_of_silence(seconds=0.05)[:20], "broken|0 samples"),
    "cut flac": (flac_of_silence(seconds=1)[:20], "broken"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_sound_says_why(name: str) -> None:
    content, reason = HOSTILE[name]
    with pytest.raises(SoundError, match=reason):
        read(content)


def test_lengths_that_are_lies_change_nothing() -> None:
    samples = GOOD[44:]
    for size in (0, 2**31 - 1, 2**32 - 1):
        heard = read(wav_header(size=size) + samples) if size else read(GOOD[:44] + samples[:1999])
        assert len(heard) in (RATE // 10, RATE // 5)
    with pytest.raises(SoundError, match="more than 600 s"):
        read(wav_header(rate=1, size=4000) + bytes(4000))  # a second a sample


def test_one_sample_is_a_sound() -> None:
    assert len(read(wav(tone(440, seconds=1 / RATE)))) == RATE // 10


@given(st.binary(max_size=200), st.integers(0, 44), st.sampled_from([b"RIFF", b"ID3", b"fLaC"]))
def test_any_bytes_are_a_sound_or_an_error(noise: bytes, kept: int, beginning: bytes) -> None:
    for content in (GOOD[:kept] + noise, beginning + noise, b"\xff\xfb\x90" + noise):
        try:
            heard = read(content, budget=SecondsBudget(5))
        except SoundError:
            continue
        assert len(heard) % 1600 == 0
        assert np.abs(heard).max() <= 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("!!!", "not base64"),
        ("data:audio/wav;base64", "no comma"),
        ("https://example.com/a.wav", "remote sounds are not fetched"),
        ("A" * (sounds.MAX_FILE_BYTES * 4 // 3 + 8), "the limit is 20971520"),
    ],
)
def test_what_is_not_in_the_message_says_why(text: str, reason: str) -> None:
    with pytest.raises(SoundError, match=reason):
        read_sound(text, rate=RATE)


def said(*parts: object) -> ConversationPrompt:
    return ConversationPrompt(messages=({"role": "user", "content": list(parts)},))


def test_a_part_that_cannot_be_heard_is_named() -> None:
    part = sound_part(GOOD)
    with pytest.raises(Refusal, match=r"messages\[0\]\.content\[1\]\.input_audio: not supp") as no:
        check_senses(said({"type": "text", "text": "?"}, part), Senses(sees_images=True))
    assert "MultimodalNotSupported" in no.value.result
    check_senses(said(part), Senses(sound_rate=RATE))
    shown = show_media(said(part, part), fit=64, senses=Senses(sound_rate=RATE, sound_s=9))
    assert [type(medium) for medium in shown.media] == [Sound, Sound]
    with pytest.raises(Refusal, match=r"content\[1\]\.input_audio: .* more than 0\.3 s together"):
        show_media(said(part, part), fit=64, senses=Senses(sound_rate=RATE, sound_s=0.3))
    for wrong, reason in ((sound_part(b"x"), "no known format"), ({"type": "input_audio"}, "none")):
        with pytest.raises(Refusal, match=reason) as refused:
            show_media(said(wrong), fit=64, senses=Senses(sound_rate=RATE, sound_s=9))
        assert refused.value.result["BadRequest"]["field"] == "messages[0].content[0].input_audio"  # type: ignore[call-overload,index]


def test_without_a_decoder_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paddler_trio.language.images.image_parts.CAN_DECODE", False)
    with pytest.raises(Refusal, match=r"paddler-trio\[sound\]"):
        check_senses(said(sound_part(GOOD)), Senses(sound_rate=RATE))
