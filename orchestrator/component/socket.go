package component

import (
	"context"
	"net"
	"time"
)

// AwaitSocket waits until a server accepts connections at a socket. The kubelet waits for two
// seconds after a connection that its container runtime refuses.
func AwaitSocket(ctx context.Context, socket string) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		if conn, err := net.Dial("unix", socket); err == nil {
			return conn.Close()
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
