"""Mechanical systems (Q, L, D), their forces, distributions and discretisations (L_d, D_d).

Notation of the whole program. Papers go by their keys: jimenez-scheurle, garcia-naranjo-jimenez, fedorov-zenkov,
retraction-maps (docs/papers.md has them in full).

- Q = G: the configurations, a Lie group of dimension n (R^n, SO(n), SE(n), products); its elements are g.
- xi: the velocity g^-1 g' in the Lie algebra, left-trivialised; w and v are its angular and its linear part.
- L(t, g, xi): the Lagrangian; L_xi its derivative in xi, L_g that in g: <L_g, eta> = d/ds L(t, g exp(s eta), xi).
- A, b: the constraint A(t, g) xi = b(t, g) of m rows (jimenez-scheurle (1), where A is mu and b is 0).
- D, d: the admissible velocities. D depends on g; d is a constant subspace of the algebra, with xi in d for LL systems
  (garcia-naranjo-jimenez, section 2) and Ad_g xi in d for LR systems (Veselov-Veselova 1986). B is a basis of either.
- phi(t, g): holonomic constraints, k of them; phi(t, g, xi): a constraint that is not linear in xi.
- lambda, l: the Lagrange multipliers; the reaction is A^T lambda (jimenez-scheurle (2), solved in (23)).
- F, u: a force, a covector; the controls that it depends on.
- p: the parameters of a system, a pytree, which its functions take last.
- mu, momentum: the covector L_xi, or B^T L_xi where it is restricted to D; it pairs with a velocity as mu . xi.
- I, J: the inertia in L = <I xi, xi>/2 and the mass matrix with <I xi, xi> = tr(xi J xi^T) (fedorov-zenkov (5.8)).
- Ad*, ad*: the duals <Ad*_g mu, xi> = <mu, Ad_g xi>, <ad*_xi mu, eta> = <mu, [xi, eta]>, without sign or inverse.
- h: the step; g0, g1 are the configurations at its ends and W = g0^-1 g1 is its displacement.
- tau: a retraction from the algebra to the group, Cayley or Exponential (retraction-maps, section III).
- node s: where in a step the velocity sits, g~ = g0 tau(s xi), g1 = g~ tau((1-s) xi) (beta in jimenez-scheurle (64)).
- rho: a finite difference map (g0, g1) -> (g~, v) (jimenez-scheurle, Definition 5.5).
- L_d, D_d: the discrete Lagrangian and constraint on G x G (garcia-naranjo-jimenez, Definition 2.1). A step solves
  D2 L_d(g0, g1) + D1 L_d(g1, g2) = A(g1)^T lambda, (g1, g2) in D_d: (3) there. l_d(W) is L_d of an invariant system.
"""

from .._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
