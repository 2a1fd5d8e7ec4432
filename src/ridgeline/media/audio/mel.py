"""Log-mel features: the input of a speech model (Radford et al., arXiv:2212.04356, section 2.2).

Shapes: N samples, F frames, M mel bins, H frequencies of a frame's spectrum.
"""

import math

import torch
from torch import Tensor

RATE = 16_000
"""The sample rate in samples per second."""
HOP = 160
"""The samples from one frame to the next: 10 ms."""
WINDOW = 400
"""The samples that a frame covers: 25 ms."""

_LOUDEST_BELOW = 8.0  # decades: values further below the loudest frame are raised to this
_FAINTEST = 1e-10


class LogMel:
    """The log-mel features of audio windows of equal length.

    Attributes:
        bins: Mel bins.
        frames: Frames of a window; shorter windows are padded with silence.
    """

    def __init__(self, bins: int, frames: int) -> None:
        self.bins, self.frames = bins, frames
        self.samples = frames * HOP
        """The number of samples of a window."""
        self._filters_MH = mel_filters(bins).T.contiguous()
        self._window = torch.hann_window(WINDOW)

    def __call__(self, samples_N: Tensor) -> Tensor:
        """Return the features, fp32 [frames, bins], of at most `samples` fp32 samples in [-1, 1]."""
        assert len(samples_N) <= self.samples, "the samples are longer than one window"
        padded_N = torch.nn.functional.pad(samples_N.float(), (0, self.samples - len(samples_N)))
        spectrum_HF = torch.stft(
            padded_N, WINDOW, HOP, window=self._window, center=True, pad_mode="reflect", return_complex=True
        )
        power_HF = spectrum_HF[:, :-1].abs().square()
        log_MF = (self._filters_MH @ power_HF).clamp(min=_FAINTEST).log10()
        log_MF = torch.maximum(log_MF, log_MF.max() - _LOUDEST_BELOW)
        return ((log_MF + 4.0) / 4.0).T.contiguous()


def mel_filters(bins: int) -> Tensor:
    """Return triangular mel filters over the frequencies of a frame's spectrum, fp32 [H, bins].

    They are evenly spaced on the mel scale up to half the sample rate, and each has area 1 in Hz. The scale is that of
    Slaney's Auditory Toolbox (Interval Research 1998-010): linear up to 1 kHz, logarithmic above.
    """
    hertz_H = torch.linspace(0, RATE / 2, WINDOW // 2 + 1, dtype=torch.float64)
    top = _FIRST_LOG + math.log(RATE / 2 / _LOG_FROM) / _LOG_STEP
    corners = _to_hertz(torch.linspace(0, top, bins + 2, dtype=torch.float64))
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    rising_HM = (hertz_H[:, None] - left) / (middle - left)
    falling_HM = (right - hertz_H[:, None]) / (right - middle)
    triangles_HM = torch.minimum(rising_HM, falling_HM).clamp(min=0)
    return (triangles_HM * (2 / (right - left))).float()


# Slaney's scale: 200/3 Hz per mel up to 1 kHz, then 27 mels for each factor of 6.4.
_LOG_FROM = 1000.0
_LINEAR_STEP = 200.0 / 3
_FIRST_LOG = _LOG_FROM / _LINEAR_STEP
_LOG_STEP = math.log(6.4) / 27


def _to_hertz(mels: Tensor) -> Tensor:
    return torch.where(mels < _FIRST_LOG, mels * _LINEAR_STEP, _LOG_FROM * torch.exp(_LOG_STEP * (mels - _FIRST_LOG)))
