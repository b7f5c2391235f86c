// Command exits ends immediately. As init or machined it makes the kernel panic; as a service it
// never becomes ready.
package main

func main() {}
