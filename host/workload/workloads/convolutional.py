"""Training on handwritten digits by convolutions; model.hidden says how many channels each has."""

from kofn.config.schema import Config
from kofn.host.workload.model import Convolutional
from kofn.host.workload.neural_network import NeuralNetwork
from kofn.host.workload.workloads.digits import Digits


class ConvolutionalDigits(Digits):
    """The same images, convolutions of 3 x 3 and one dense layer."""

    @staticmethod
    def network(config: Config) -> NeuralNetwork:
        return Convolutional(config.model.hidden, config.run.seed)


convolutional = ConvolutionalDigits
