// Package offlineapi answers a node's own components in the place of the API server, when the machine
// has started and no API server works: those pods that ask for it (Annotation) start again, with
// their volumes, Services, policies and names, out of what the API server said before.
//
// Two halves. The keeper (keep.go) reads, while an API server works, what such pods take to start,
// and keeps that as a file on DATA (record.go). The stand-in (serve.go) is a server on loopback to
// which package balancer leads the node's components after the machine has started, while it has
// met no API server that works. It reads from the record, hears the kubelet about the pods' states,
// has the Services' endpoints follow those (world.go), and refuses everything else. The first API
// server that works ends it for the life of the process: all that was told by it is asked for anew
// there, pods keep their UID and go on.
//
// The components take it for an API server by a certificate that each start of the process makes,
// and adds to the file of authorities that they believe (run.go); its key is in memory. It answers
// only those who prove by the cluster's CA to be a component of this node.
//
// docs/decisions/0046-stand-in.md says why it is that.
package offlineapi
