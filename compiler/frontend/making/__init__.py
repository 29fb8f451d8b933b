"""From any inference model to a training model of the standard: `make_training_model`.

arguments         what each argument may be
emit              `Algorithm`, what an algorithm graph is put together from
facts             who makes and reads a value, types, constants
batch, batch_...  a batch fixed at 1 becomes a symbol
select            which tensors train
modes             training form of BatchNormalization and Dropout
own_statistics    running statistics that share a tensor get one of their own
loss_options      `Loss`: what the user says       activations  a Softmax or Sigmoid before the loss
losses, class_losses, own_loss                     the nodes of each
targets           the inputs that losses compare with
optimizers, ...   updates, schedules, clipping, accumulation, averages
fresh             the initialization graph
merged            notes on tensors that may be meant as several
made              our own check of what was made
model             all of it, in order
"""

from compiler.frontend.making.loss_options import Loss
from compiler.frontend.making.model import make_training_model

__all__ = ["Loss", "make_training_model"]
