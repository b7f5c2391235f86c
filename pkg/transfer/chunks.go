package transfer

// ChunkSize is the size of a message with data, in bytes.
const ChunkSize = 256 << 10

// Chunks reads a stream of messages with chunks of data as bytes. It implements io.ReadCloser.
type Chunks[T interface{ GetChunk() []byte }] struct {
	Receive   func() (T, error)
	Rest      []byte       // data that was received before
	CloseFunc func() error // called by Close; may be nil
}

// Read implements io.Reader.
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
