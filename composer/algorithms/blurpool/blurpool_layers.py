"""Layers that blur before they leave out pixels, so that what they keep does not alias."""

import copy
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

Size: TypeAlias = int | tuple[int, int]


def _default_2d_filter() -> torch.Tensor:
    """Returns the outer product of [1, 2, 1] / 4 with itself, ``[1, 1, 3, 3]``."""
    row = torch.tensor([1.0, 2.0, 1.0]) / 4
    return torch.outer(row, row)[None, None]


torch.fx.wrap("blur_2d")  # which looks at sizes: a call to it stays whole when models are traced


def _same_padding(filter: torch.Tensor) -> tuple[int, int]:
    height, width = filter.shape[-2:]
    if height % 2 == 0 or width % 2 == 0:
        raise IndexError(
            f"The blur filter is {height} x {width}; its sides must be odd, so that it has a middle"
        )
    return height // 2, width // 2


def blur_2d(
    input: torch.Tensor,
    channels: int = -1,
    stride: Size = 1,
    filter: torch.Tensor | None = None,
) -> torch.Tensor:
    """Blurs each channel of ``[N, C, H, W]``, and keeps every ``stride``-th pixel.

    An input that is smaller than the filter, padding included, is returned as it is.

    Args:
        input: The images.
        channels: How many channels they have; -1 looks.
        stride: Which pixels are kept.
        filter: ``[1 or C, 1, odd, odd]``; by default [1, 2, 1] in each direction.

    Raises:
        IndexError: If a side of the filter is even.
    """
    kernel = _default_2d_filter().to(input) if filter is None else filter
    padding = _same_padding(kernel)
    height, width = input.shape[-2:]
    if height + 2 * padding[0] < kernel.shape[-2] or width + 2 * padding[1] < kernel.shape[-1]:
        return input
    channels = input.shape[1] if channels < 1 else channels
    if kernel.shape[0] == 1 and channels > 1:
        kernel = kernel.expand(channels, -1, -1, -1)
    return F.conv2d(input, kernel.to(input.dtype), None, stride, padding, groups=channels)


def blurmax_pool2d(
    input: torch.Tensor,
    kernel_size: Size | None = None,
    stride: Size = 2,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    filter: torch.Tensor | None = None,
) -> torch.Tensor:
    """Takes the maximum around every pixel, blurs, and keeps every ``stride``-th pixel.

    Args:
        input: Images ``[N, C, H, W]``.
        kernel_size: Of the maximum; (2, 2) by default.
        stride: Which pixels are kept.
        padding: As in `torch.nn.MaxPool2d`.
        dilation: As in `torch.nn.MaxPool2d`.
        ceil_mode: As in `torch.nn.MaxPool2d`.
        filter: As in `blur_2d`.
    """
    maxima = F.max_pool2d(
        input,
        kernel_size=(2, 2) if kernel_size is None else kernel_size,
        stride=1,
        padding=padding,
        dilation=dilation,
        ceil_mode=ceil_mode,
    )
    return blur_2d(maxima, stride=stride, filter=filter)


class BlurMaxPool2d(torch.nn.Module):
    """A `torch.nn.MaxPool2d` that blurs its maxima before it leaves out pixels.

    Args:
        kernel_size: Of the maximum.
        stride: Which pixels are kept; by default the kernel's size.
        padding: As in `torch.nn.MaxPool2d`.
        dilation: As in `torch.nn.MaxPool2d`.
        ceil_mode: As in `torch.nn.MaxPool2d`.
    """

    filt2d: torch.Tensor

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        self.ceil_mode = ceil_mode
        self.register_buffer("filt2d", _default_2d_filter())

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns the blurred maxima that are kept."""
        return blurmax_pool2d(
            input,
            kernel_size=self.kernel_size,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            ceil_mode=self.ceil_mode,
            filter=self.filt2d,
        )

    @staticmethod
    def from_maxpool2d(module: torch.nn.MaxPool2d, module_index: int = -1) -> "BlurMaxPool2d":
        """Makes the layer with the settings of a `torch.nn.MaxPool2d`."""
        del module_index
        settings: Any = module
        return BlurMaxPool2d(
            kernel_size=settings.kernel_size,
            stride=settings.stride,
            padding=settings.padding,
            dilation=settings.dilation,
            ceil_mode=settings.ceil_mode,
        )


class BlurConv2d(torch.nn.Module):
    """A `torch.nn.Conv2d` that blurs before it leaves out pixels.

    Args:
        in_channels: As in `torch.nn.Conv2d`.
        out_channels: As in `torch.nn.Conv2d`.
        kernel_size: As in `torch.nn.Conv2d`.
        stride: Which pixels are kept; by default the kernel's size.
        padding: As in `torch.nn.Conv2d`.
        dilation: As in `torch.nn.Conv2d`.
        groups: As in `torch.nn.Conv2d`.
        bias: As in `torch.nn.Conv2d`.
        blur_first: Whether the input is blurred and then convolved with the stride; otherwise it is
            convolved at every pixel and then blurred, which costs more.
    """

    blur_filter: torch.Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        blur_first: bool = True,
    ) -> None:
        super().__init__()
        conv = torch.nn.Conv2d(
            in_channels,
            out_channels,
            kernel_size,
            stride=kernel_size if stride is None else stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            bias=bias,
        )
        self._wrap(conv, blur_first)

    def _wrap(self, conv: torch.nn.Conv2d, blur_first: bool) -> None:
        self.blur_first = blur_first
        self.blur_nchannels = conv.in_channels if blur_first else conv.out_channels
        self.blur_stride: Any = 1 if blur_first else conv.stride
        if not blur_first:
            conv = copy.copy(conv)  # shares its parameters
            conv.stride = (1, 1)
        conv._already_blurpooled = True  # type: ignore[assignment]
        self.conv = conv
        blur_filter = _default_2d_filter().repeat(self.blur_nchannels, 1, 1, 1)
        self.register_buffer("blur_filter", blur_filter.to(conv.weight))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns the convolution without aliasing."""
        if self.blur_first:
            return self.conv(self._blur(input))
        return self._blur(self.conv(input))

    def _blur(self, input: torch.Tensor) -> torch.Tensor:
        return blur_2d(input, self.blur_nchannels, self.blur_stride, self.blur_filter)

    @staticmethod
    def from_conv2d(
        module: torch.nn.Conv2d, module_index: int = -1, blur_first: bool = True
    ) -> "BlurConv2d":
        """Wraps a convolution, whose parameters it goes on with."""
        del module_index
        blurred = BlurConv2d.__new__(BlurConv2d)
        torch.nn.Module.__init__(blurred)
        blurred._wrap(module, blur_first)
        return blurred.train(module.training)


class BlurPool2d(torch.nn.Module):
    """Blurs, and keeps every ``stride``-th pixel: `blur_2d` as a layer.

    Args:
        channels: How many channels there are; 0 looks at each input.
        stride: Which pixels are kept.
        padding: The pixels added on each side, which must be 1: the filter's half width.
    """

    blur_filter: torch.Tensor

    def __init__(self, channels: int = 0, stride: Size = 2, padding: Size = 1) -> None:
        super().__init__()
        if padding not in (1, (1, 1)):
            raise ValueError(f"padding={padding} does not go with the 3 x 3 filter; leave it at 1.")
        self.channels = channels
        self.stride = stride
        self.padding = padding
        blur_filter = _default_2d_filter()
        if channels > 0:
            blur_filter = blur_filter.repeat(channels, 1, 1, 1)
        self.register_buffer("blur_filter", blur_filter)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns the blurred pixels that are kept."""
        return blur_2d(input, self.channels, self.stride, self.blur_filter)
