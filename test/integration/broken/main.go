// Command broken is an init that ends at once: the kernel panics, and resets the machine.
package main

func main() {}
