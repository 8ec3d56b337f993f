"""Training on handwritten digits by convolutions; model.hidden has the convolutions' numbers of channels."""

from kofn_common.config.schema import Config
from kofn_host.workload.model import Convolutional
from kofn_host.workload.neural_network import NeuralNetwork
from kofn_host.workload.workloads.digits import Digits


class ConvolutionalDigits(Digits):
    """Digits with 3 x 3 convolutions and one dense layer."""

    @staticmethod
    def network(config: Config) -> NeuralNetwork:
        return Convolutional(config.model.hidden, config.run.seed)


convolutional = ConvolutionalDigits
