package transfer

// ChunkSize is the number of data bytes in a message of a stream.
const ChunkSize = 256 << 10

// Chunks is an io.ReadCloser that reads a stream of messages as bytes: the concatenated chunks of
// the messages.
type Chunks[T interface{ GetChunk() []byte }] struct {
	Receive   func() (T, error) // returns the next message
	Rest      []byte            // bytes to return before the next message
	CloseFunc func() error      // called by Close; may be nil
}

// Read implements io.Reader. Its error is the error of Receive.
func (c *Chunks[T]) Read(p []byte) (int, error) {
	for len(c.Rest) == 0 {
		r, err := c.Receive()
		if err != nil {
			return 0, err
		}
		c.Rest = r.GetChunk()
	}
	n := copy(p, c.Rest)
	c.Rest = c.Rest[n:]
	return n, nil
}

// Close implements io.Closer.
func (c *Chunks[T]) Close() error {
	if c.CloseFunc == nil {
		return nil
	}
	return c.CloseFunc()
}
