// Package offlineapi lets pods with the Annotation start after a boot without a reachable API
// server, with their volumes, Services, policies and DNS names. The offline API server answers the
// node's own components from recorded objects.
//
// The package has two parts. While an API server is reachable, the recorder (recorder.go) reads the
// objects that these pods need, and stores them in a file on DATA (record.go). After a boot, the
// offline API server (serve.go) listens on loopback, and package balancer connects the node's
// components to it until an API server is ready. The offline API server serves the record, accepts
// the status of pods from the kubelet, updates the endpoints of Services accordingly (store.go),
// and rejects all other requests. It ends when the first API server is ready, and does not run
// again in this process. The components then list all objects at the API server. The pods keep
// their UIDs and continue to run.
//
// Each start of the process creates a certificate for the offline API server, with a key that is
// only in memory, and adds the certificate to the file of CAs that the node's components trust
// (run.go). The offline API server answers only clients with a certificate of the cluster's CA for
// a component of this node.
//
// docs/decisions/0046-offline-api.md and 0079-offline-record.md give the reasons.
package offlineapi
