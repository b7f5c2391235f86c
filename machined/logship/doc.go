// Package logship ships the machine's logs to the receivers of the configuration, with the senders
// of package sender.
//
// Each source is an existing store: the audit logs of the machine and of Kubernetes, the events,
// the logs of the services, the kernel log. The package owns the senders, which change with the
// configuration, and their cursor files. It stores no record: a sender reads its sources again
// after a reconnect.
package logship
