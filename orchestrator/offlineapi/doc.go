// Package offlineapi answers a node's own components instead of the API server after a boot without
// a reachable API server: pods with the Annotation start again, with their volumes, Services,
// policies and names, from recorded objects.
//
// It has two parts. While an API server is reachable, the recorder (recorder.go) reads the objects
// that these pods need to start, and stores them as a file on DATA (record.go). The offline API
// server (serve.go) listens on loopback; package balancer connects the node's components to it
// after a boot, until an API server is ready. It serves the record, accepts the kubelet's status of
// the pods, updates the Services' endpoints accordingly (store.go), and rejects all other requests.
// The first ready API server ends it for the lifetime of the process: the components list all
// objects again there, and pods keep their UID and continue.
//
// The components accept it as an API server by a certificate that each start of the process creates
// and adds to the file of CAs that they trust (run.go); its key is only in memory. It answers only
// clients with a certificate of the cluster's CA for a component of this node.
//
// docs/decisions/0046-offline-api.md and 0079-offline-record.md give the reasons.
package offlineapi
