"""Scattering coefficients (Mallat 2012; Bruna and Mallat 2013).

Tramer and Boneh (2021) train linear heads on them. With Morlet wavelets psi of scale
2^j and angle k pi / angles, and a Gaussian phi of the largest scale 2^J,

    order 0: x * phi
    order 1: |x * psi_j,k| * phi
    order 2: ||x * psi_j,k| * psi_i,l| * phi,  j < i < J

each kept at every 2^J-th pixel. With J = 2 and 8 angles, an image of 28 x 28 has 1 + 16
+ 64 = 81 maps of 7 x 7. The filters are those of kymatio (Andreux et al. 2020): sigma =
0.8 * 2^j, frequency 0.75 pi / 2^j, slant 4 / angles, and the mean of each wavelet is
zero. Images are reflected at their edges by 2^J pixels; beyond that, maps are periodic.

Channels are normalised in groups, over the pixels of one image (Wu and He 2018, without
weights). This reads no other image, so it costs no privacy. Tramer and Boneh's
normalisation by the data's mean and variance would be a release, and is not implemented
here.
"""

from __future__ import annotations

import functools
import math
from typing import Literal

from dpfedbench.config.part import setting
from dpfedbench.lazy import np, torch
from dpfedbench.models.features.features import Features


class Scattering(Features):
    """Coefficients of orders 0 to 2, normalised in groups of channels."""

    kind: Literal["scattering"] = "scattering"
    scales: int = setting(
        2, ge=1, le=5, doc="J: maps are kept at every 2^J-th pixel", paper="2"
    )
    angles: int = setting(
        8, ge=1, le=32, doc="angles of the wavelets at each scale", paper="8"
    )
    groups: int | None = setting(
        27,
        ge=1,
        doc=(
            "groups of channels, each normalised over one image; null:"
            " features are not normalised"
        ),
        paper="27",
    )

    def channels(self, channels: int) -> int:
        """Return the number of maps of an image with `channels` channels."""
        pairs = self.scales * (self.scales - 1) // 2
        return channels * (1 + self.scales * self.angles + pairs * self.angles**2)

    def shape(self, image_shape: tuple[int, ...]) -> tuple[int, int, int]:
        height, width, channels = image_shape
        step = 2**self.scales
        maps = self.channels(channels)
        return -(-height // step), -(-width // step), maps

    def extract(self, images: torch.Tensor) -> torch.Tensor:
        step = 2**self.scales
        (height, width) = images.shape[2:]
        more = (step, step + -width % step, step, step + -height % step)
        padded = torch.nn.functional.pad(images, more, mode="reflect")
        waves = _wavelets(*padded.shape[2:], self.scales, self.angles)
        # The Gaussian is a product of one for rows and one for columns. Only the kept
        # pixels are computed.
        rows, columns = (_blur(size, self.scales) for size in padded.shape[2:])

        def kept(maps: torch.Tensor) -> torch.Tensor:
            """Blur and subsample maps [n, C, ..., H, W] to [n, -1, h, w].

            Every `step`-th pixel is kept, without the reflected margin.
            """
            return (rows @ maps @ columns.T).flatten(1, -3)

        def filtered(spectrum: torch.Tensor, scale: int) -> torch.Tensor:
            """Filter a spectrum [..., H, W] by the wavelets of one scale.

            Returns:
                Moduli [..., angles, H, W].
            """
            return torch.fft.ifft2(spectrum[..., None, :, :] * waves[scale]).abs()

        parts = [kept(padded)]
        spectrum = torch.fft.fft2(padded)
        for first in range(self.scales):
            moduli = filtered(spectrum, first)
            parts.append(kept(moduli))
            if first + 1 < self.scales:
                of_moduli = torch.fft.fft2(moduli)
                parts += [
                    kept(filtered(of_moduli, second))
                    for second in range(first + 1, self.scales)
                ]
        maps = torch.cat(parts, dim=1)
        return (
            maps
            if self.groups is None
            else torch.nn.functional.group_norm(maps, self.groups)
        )


def gabor(
    height: int,
    width: int,
    *,
    deviation: float,
    angle: float,
    frequency: float,
    slant: float,
) -> np.ndarray:
    """Return a Gaussian of sum 1 times a plane wave, complex128 [H, W].

    It lies on a torus whose origin is the first pixel.
    """
    cosine = math.cos(angle)
    sine = math.sin(angle)
    wavelet = np.zeros((height, width), np.complex128)
    for down in range(-2, 3):
        for right in range(-2, 3):
            y, x = (
                np.mgrid[:height, :width]
                + np.array([down * height, right * width])[:, None, None]
            )
            along = cosine * y + sine * x
            across = slant * (cosine * x - sine * y)
            wavelet += np.exp(
                -(along**2 + across**2) / (2 * deviation**2) + 1j * frequency * along
            )
    return wavelet * slant / (2 * math.pi * deviation**2)


def morlet(
    height: int, width: int, *, scale: int, angle: float, angles: int
) -> np.ndarray:
    """Return a wavelet of scale 2^scale, of sum zero.

    It is a Gabor function minus a multiple of its envelope.
    """
    sizes = {"deviation": 0.8 * 2**scale, "angle": angle, "slant": 4 / angles}
    wave = gabor(height, width, frequency=0.75 * math.pi / 2**scale, **sizes)
    envelope = gabor(height, width, frequency=0.0, **sizes)
    return wave - wave.sum() / envelope.sum() * envelope


@functools.lru_cache(maxsize=8)
def _wavelets(
    height: int, width: int, scales: int, angles: int
) -> tuple[torch.Tensor, ...]:
    """Return the wavelets' spectra of each scale, float32 [angles, H, W].

    The spectra are real.
    """

    def spectrum(scale: int, index: int) -> np.ndarray:
        angle = index * math.pi / angles
        wave = morlet(height, width, scale=scale, angle=angle, angles=angles)
        return np.fft.fft2(wave).real.astype(np.float32)

    return tuple(
        torch.from_numpy(np.stack([spectrum(scale, index) for index in range(angles)]))
        for scale in range(scales)
    )


@functools.lru_cache(maxsize=8)
def _blur(size: int, scales: int) -> torch.Tensor:
    """Return the matrix that blurs one side and subsamples it, float32 [kept, size].

    Every 2^J-th pixel within the reflected margin is kept.
    """
    step = 2**scales
    centres = np.arange(step, size - step, step)
    deviation = 0.8 * 2 ** (scales - 1)
    away = (
        centres[:, None] - np.arange(size) + np.arange(-2, 3)[:, None, None] * size
    ).astype(np.float64)
    weights = np.exp(-(away**2) / (2 * deviation**2)).sum(axis=0) / (
        math.sqrt(2 * math.pi) * deviation
    )
    return torch.from_numpy(weights.astype(np.float32))
