"""Accountants of samplers that only other libraries have.

Importing this package adds them to the accountants of dpsum.
"""

from dpsum.accounting import analyses
from dpwatch.accountants.fixed_draws import FixedDrawsAccountant
from dpwatch.accountants.secret_batches import SecretBatchesAccountant

analyses.add(FixedDrawsAccountant)
analyses.add(SecretBatchesAccountant, replaces=True)
