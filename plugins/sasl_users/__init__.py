"""Users of the proxy's own: authenticates clients by PLAIN and SCRAM against a file of SCRAM verifiers.

command    ``headrace users``: adding, listing and removing users
plugin     the hook implementations
options    the plugin's options, validated
directory  the users in memory, and the thread that follows the file
exchanges  the authentication of one client
user_file  the SQLite file
lookups    which verifier a name is checked against; unknown names look like known ones
"""

from headrace.plugins.sasl_users.plugin import SaslUsers

__all__ = ["SaslUsers"]
