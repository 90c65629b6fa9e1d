"""Problems whose answer is known exactly: Phi(x) = max_y f(x, y), its gradient and, if any, the saddle.

f is the mean of the clients' f_i, each of them the mean over its rows. What makes clients and rows differ
adds up to zero or is measured on the data that were drawn, so every answer holds to rounding. The dials have
one meaning throughout: `clients` (N); `samples`, rows of a client, or (fewest, most); `heterogeneity`, how
far the clients' gradients differ; `dissimilarity`, how far the most unlike client's Hessian is from the mean
one, in spectral norm (2 delta in the paper's letters); `noise`, how far rows of one client differ; `seed`,
which instance is drawn; `start_seed`, where all runs start, whose seeds then decide the sampling alone;
`kappa`, except where `penalty` or `price` set it or it is fixed. Everything is in float64.
"""

from fedsaddle.problems.exact.least_squares import RobustLeastSquares
from fedsaddle.problems.exact.quadratic import Bilinear, Quadratic
from fedsaddle.problems.exact.toys import ToyWGAN, TwoSines

__all__ = ["Bilinear", "Quadratic", "RobustLeastSquares", "ToyWGAN", "TwoSines"]
