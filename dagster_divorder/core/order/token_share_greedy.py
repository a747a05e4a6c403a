"""token_share_greedy: the second seed's idea 1, to the letter. Among all remaining items the next one is

    argmin over d of |(T_c + l_d) - tau_c (S + l_d)|,    c = label of d, l_d = its tokens, of equal ones a random item,

with T_c the tokens of label c placed so far, S all tokens placed, tau_c the label's share of all tokens.
Guarantee: exact; compared as whole numbers of 128 bits (times the total), so no rounding decides a tie.
Cost: O(M K log R) time for R distinct lengths, O(M) memory: for one label the best length is the remaining one
nearest to -D_c / (1 - tau_c), D_c = T_c - tau_c S.
Source: the second seed, "Perform the repetition-aware spacing at the document level".
Known weakness: only the placed item's own label is looked at, so short items of labels on track go first and what is
long, or behind, is left for the end.
"""

from dagster_divorder.core.order.problem import Order, Problem
from dagster_divorder.core.order.runs import runs


def place(problem: Problem) -> Order:
    from dagster_divorder.core.kernels.order_token_share import nearest_to_share

    sorted_items, shuffle = runs(problem)
    return shuffle[nearest_to_share(*sorted_items)]
