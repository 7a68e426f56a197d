"""A client of Kafka brokers for administration: client quotas, topics under the quota of mutations, delegation tokens.

Used by the command line, and by users in their programs. It imports `headrace.proxy.wire` and
`headrace.quota_callbacks`, and nothing of the proxy: the proxy's own connections to brokers are in
`headrace.proxy.network.upstream`.

    sync               the admin client for programs without trio
    admin              the admin client on trio
    topics             creating and deleting topics, adding partitions to topics: values and messages
    mutations          sending topics again that the quota of mutations refused (KIP-599)
    quotas             filters and alterations of client quotas: values and messages
    delegation_tokens  the owners of delegation tokens: values and messages
    results            the results of a call by topic or entity
    calls              attempts, back-off and deadline of one call
    cluster            the brokers, the controller, and the throttling by each broker
    connection         one connection: TCP, TLS, versions of APIs, authentication, requests and replies
    properties         settings from a file in Java's properties format
    properties_format  that format, and the format of JAAS entries
    settings           the settings of a client
    errors             the errors that users catch
"""
