package approval

import "context"

// Pending is the content of a call with its approval. It is in the context of a call if only a
// later step decides whether the call needs the approval.
type Pending struct {
	Content  map[string]string
	Approval []byte
}

type pendingKey struct{}

// NewContext returns a context with a pending approval.
func NewContext(parent context.Context, p Pending) context.Context {
	return context.WithValue(parent, pendingKey{}, p)
}

// FromContext returns the pending approval of a context; the zero value if it has none.
func FromContext(c context.Context) Pending {
	p, _ := c.Value(pendingKey{}).(Pending)
	return p
}
